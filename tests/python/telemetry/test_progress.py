"""The progress line on a terminal leaves what the script prints as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from harness import PACKAGE_PARENT
from memtide._daemon import inspection
from memtide._telemetry.progress import TerminalLine, line_of
from memtide._telemetry.recorder import Record

_RUN = ("run", "--device=none", "--host-pool=16MiB", "--ssd-pool=64MiB")
# Prints each step's number, in two parts, and ends with an open line.
_TRAINS_FOR_A_SECOND = """
import sys, time, torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end_s, steps = time.monotonic() + 2, 0
while time.monotonic() < end_s:
    optimizer.zero_grad()
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
    steps += 1
    if steps % 8 == 0:
        print("made", end=" ", flush=True)
        print(steps, flush=True)
sys.stdout.write("the end")
"""


def rows(written: str) -> list[str]:
    """The rows that a terminal shows of it, without trailing spaces."""
    shown: list[str] = []
    for line in written.replace("\r\n", "\n").split("\n"):
        row = ""
        for part in line.split("\r"):
            row = part + row[len(part) :]
        shown.append(row.rstrip())
    return shown


class Terminal:
    """A terminal, and a stream to it."""

    def __init__(self) -> None:
        self._ours, its = os.openpty()
        self.stream: TextIO = os.fdopen(its, "w")

    def written(self) -> str:
        """The text that has been written since the last call."""
        self.stream.flush()
        os.write(self.stream.fileno(), b"<end>")
        text = b""
        while not text.endswith(b"<end>"):
            text += os.read(self._ours, 1 << 16)
        return text.decode().removesuffix("<end>")

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_a_line_is_rewritten_in_place(terminal: Terminal) -> None:
    line = TerminalLine(terminal.stream, [])
    line.draw("a long line")
    line.draw("short")
    assert rows(terminal.written()) == ["short"]


def test_what_a_script_writes_comes_after_the_line_is_erased(terminal: Terminal) -> None:
    line = TerminalLine(terminal.stream, [terminal.stream])
    line.draw("a long line")
    print("loss", 0.5, file=terminal.stream)
    line.draw("another line")
    line.close()
    assert rows(terminal.written()) == ["loss 0.5", ""]


def test_nothing_is_drawn_beside_a_line_that_the_script_has_begun(terminal: Terminal) -> None:
    line = TerminalLine(terminal.stream, [terminal.stream])
    print("\r 3 of 7", end="", file=terminal.stream)
    line.draw("a line")
    print("\r 4 of 7", end="", file=terminal.stream)
    print(file=terminal.stream)
    assert rows(terminal.written()) == [" 4 of 7", ""]
    line.draw("a line")
    assert "a line" in terminal.written()


def test_after_its_end_a_stream_writes_as_before(terminal: Terminal) -> None:
    line = TerminalLine(terminal.stream, [terminal.stream])
    assert "write" in vars(terminal.stream)
    line.close()
    assert "write" not in vars(terminal.stream)


def test_a_line_has_the_step_its_time_the_pools_and_what_moves() -> None:
    reply = {"tier": "TIER_HOST", "capacity_bytes": 16 << 20, "used_bytes": 12 << 20}
    pools = inspection.parse({"pools": [reply]}).pools
    record = Record(7, 2, 1.0, {"ssd_read_bytes": 48 << 20}, {}, {}, 0.5, {}, {}, 0.0)
    assert line_of(8, record, 0.25, pools) == (
        "memtide: step 8 · 0.50 s (0.25 s without waits) · host 75% · 48.0 MiB/s"
    )
    assert "without waits" not in line_of(8, record, None, pools)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_script_on_a_terminal_has_the_line_while_it_trains(quiet: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_TRAINS_FOR_A_SECOND, encoding="utf-8")
    ours, its = os.openpty()
    changes = {"PYTHONPATH": str(PACKAGE_PARENT), "NO_COLOR": "1"}
    flags = [*_RUN, f"--ssd-dir={tmp_path}", *(["--quiet"] if quiet else [])]
    running = subprocess.Popen(
        [sys.executable, "-m", "memtide", *flags, script],
        env={**os.environ, **changes},
        stdout=its,
        stderr=its,
    )
    os.close(its)
    written = b""
    while True:
        try:
            written += os.read(ours, 1 << 16)
        except OSError:  # The process has ended, and with it the terminal.
            break
    os.close(ours)
    assert running.wait() == 0
    text = written.decode()
    assert ("memtide: step" in text) == (not quiet)
    assert "\x1b" not in text
    shown = rows(text)
    made = [row for row in shown if row.startswith("made")]
    assert made == [f"made {8 * (step + 1)}" for step in range(len(made))]
    assert not any("memtide: step" in row for row in shown)
    assert "the end" in shown
