"""`memtide doctor --measure`: measures this machine for `memtide plan --machine this`."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

from memtide._capi.locate import default_ssd_dir
from memtide._plan_file import machine_file
from memtide._util.console import make_console, print_whole
from memtide._util.output_file import check_writable
from memtide.errors import UsageError
from rich.console import Console
from rich.table import Table

from memtide_plan.measure.this_machine import measure


def print_measurement(ssd_dir: Path | None, file: str, console: Console) -> None:
    """Measures, prints a table of what was found and how long it took, and writes the file.
    `file`: its path; empty: the one that `--machine this` reads. UsageError: it cannot be
    written."""
    path = Path(file) if file else machine_file.default_path()
    if file:
        check_writable(path)
    began_s = time.monotonic()
    with make_console(stderr=True).status("measuring") as shown:
        measured = measure(
            ssd_dir or default_ssd_dir(), lambda part: shown.update(f"measuring {part}")
        )
    took_s = time.monotonic() - began_s
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in (("measured", "left"), ("result", "right"), ("in", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for line in measured.measurements:
        table.add_row(line.subject, line.result, f"{line.took_s:.1f} s")
    print_whole(console, table)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    beside = {
        "source": f"memtide doctor --measure, {now}",
        "measured": {line.subject: line.result for line in measured.measurements},
    }
    try:
        machine_file.save(measured.machine, path, beside)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from None
    console.print(f"written to {path} in {took_s:.1f} s", markup=False, soft_wrap=True)
