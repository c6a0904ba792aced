"""`memtide run`: a program, unmodified, in chunks."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from memtide import chunk_size, report, runtime_hook, trace, trace_file
from memtide._native import Client
from memtide.connect import Connection, Wish, connect, reach
from memtide.errors import MemtideError, UsageError
from memtide.launchers import Launcher, launcher_in
from memtide.named_job import take_up
from memtide.runtime_hook import Stepping
from memtide.script import Program, run_program
from memtide.stats import Recorder, Summary


@dataclass(frozen=True)
class RunOptions:
    """What `memtide run` was told."""

    program: Program
    wish: Wish
    stats: Path | None = None
    tide: Path | None = None
    tide_iteration: int = 6
    trace: Path | None = None
    quiet: bool = False
    exact: bool = False  # Optimizers step in the script's process. Not with a job's name.
    skip_non_finite: bool = False
    resume: bool = False


def prepare(options: RunOptions) -> Callable[[], int]:
    """Reaches a daemon and sets the hooks; what is returned runs the program, or the launcher of
    several.

    The program's own exceptions and SystemExit come out of that, after the summary.
    """
    for output in (options.stats, options.tide):
        if output is not None and not output.absolute().parent.is_dir():
            raise UsageError(f"no directory to write '{output}' into")
    if options.trace is not None:
        trace_file.check_output(options.trace)
    if options.resume and not options.wish.job_name:
        raise UsageError("--resume takes up the job that --job names")
    launcher = launcher_in(options.program)
    if launcher is not None:
        return _prepare_ranks(options, launcher)
    program = options.program.located()
    rank = os.environ.get("RANK", "0")  # As launchers tell; of several, the first one reports.
    if rank != "0":
        options = replace(options, stats=None, tide=None, trace=None)
    connection = connect(options.wish)
    stepping = _stepping(connection, options)
    recorder = Recorder(
        connection.client,
        connection.socket_dir,
        options.tide_iteration if options.tide is not None else None,
    )
    progress = None
    if sys.stderr.isatty() and not options.quiet and rank == "0":
        progress = report.Progress(recorder)
    runtime_hook.install(connection.client, progress or recorder, stepping)
    outputs = _Outputs(_absolute(options.stats), _absolute(options.tide), _absolute(options.trace))
    owner = os.getpid()

    def run() -> int:
        try:
            run_program(program)
        finally:
            if os.getpid() == owner:
                if progress is not None:
                    progress.clear()
                _conclude(connection, recorder, outputs, "" if options.quiet else rank)
                if not options.quiet and not options.wish.chunk_bytes and rank == "0":
                    _advise(connection.client)
        return 0

    return run


def _prepare_ranks(options: RunOptions, launcher: Launcher) -> Callable[[], int]:
    if options.wish.job_name:
        raise UsageError("--job keeps the steps of one process, and a launcher starts several")
    if options.wish.pools.ssd_bytes == 0:
        raise UsageError("several processes share memory only with an SSD pool to make room in")
    socket_dir, daemon = reach(options.wish)
    if daemon is not None:
        atexit.register(daemon.stop)
    command = [sys.executable, "-u", "-m", "memtide", "run", f"--socket-dir={socket_dir}"]
    if options.wish.chunk_bytes:
        command.append(f"--chunk-size={options.wish.chunk_bytes}")
    for name, value in (("stats", options.stats), ("tide", options.tide), ("trace", options.trace)):
        if value is not None:
            command.append(f"--{name}={value.absolute()}")
    command.append(f"--tide-iteration={options.tide_iteration}")
    for name, chosen in (
        ("exact", options.exact),
        ("skip-non-finite", options.skip_non_finite),
        ("quiet", options.quiet),
    ):
        if chosen:
            command.append(f"--{name}")

    def run() -> int:
        launcher.launch(command)
        return 0

    return run


def _stepping(connection: Connection, options: RunOptions) -> Stepping:
    name = options.wish.job_name
    if not name:
        return Stepping(options.exact, options.skip_non_finite)
    found = take_up(connection.client, connection.socket_dir, name, resume=options.resume)
    return Stepping(skip_non_finite=options.skip_non_finite, keep=True, found=found)


@dataclass(frozen=True)
class _Outputs:
    """Where to write what, absolute: the script may change the working directory."""

    stats: Path | None
    tide: Path | None
    trace: Path | None


def _conclude(
    connection: Connection,
    recorder: Recorder,
    outputs: _Outputs,
    told_of: str,
) -> None:
    # `told_of`: rank; none: nothing is printed.
    console = Console(stderr=True, highlight=False)
    try:
        summary = recorder.finish()
    except MemtideError as error:
        console.print(f"memtide: no summary, the daemon is gone: {error}", markup=False)
        return
    if outputs.stats is not None:  # First: who reads what is printed may leave in the middle of it.
        told = json.dumps(summary.as_json(), indent=1)
        outputs.stats.write_text(told + "\n", encoding="utf-8")
    if told_of == "0":
        report.print_summary(summary, console)
    elif told_of:
        report.print_if_nothing_managed(summary, console, f"memtide, in rank {told_of},")
    if outputs.tide is not None:
        _draw(summary, outputs.tide, console)
    if outputs.trace is not None:
        _export_trace(connection.socket_dir, outputs.trace, console)


def _advise(client: Client) -> None:
    # The session was opened before there was a model to choose the size for.
    properties = client.properties
    pools = {
        tier: slots * properties.chunk_bytes
        for tier, slots in (
            ("device", properties.device_slots),
            ("host", properties.host_slots),
            ("ssd", properties.ssd_slots),
        )
    }
    found = chunk_size.clearly_better(runtime_hook.parameters(), pools, properties.chunk_bytes)
    if found is not None:
        report.print_advice(*found, Console(stderr=True, highlight=False))


def _draw(summary: Summary, path: Path, console: Console) -> None:
    if summary.tide is None:
        console.print("memtide: no optimizer stepped, so there is no tide to draw")
        return
    from memtide import tide

    tide.draw(summary.tide, path)


def _export_trace(socket_dir: Path, path: Path, console: Console) -> None:
    try:
        job_id = trace.job_of_process(socket_dir, os.getpid())
        trace_file.export(trace.fetch(socket_dir, job_id), path)
    except MemtideError as error:
        console.print(f"memtide: no trace: {error}", markup=False)


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path is not None else None
