"""The progress line of `memtide run` on a terminal.

It is rewritten in place, at most twice a second, and only where the cursor is at the beginning of a
line. Text that the script writes through Python's sys.stdout and sys.stderr is seen (their `write`
is replaced while there is a line to erase), so the line is erased before, and drawn again once the
script has ended its own line. While a progress bar of the script's is on the terminal, which leaves
its line open, memtide draws nothing. Writes past Python (by C libraries or child processes) are not
seen: they may follow the line on the same row.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from memtide._daemon.inspection import Pool
from memtide._telemetry.observer import Passing
from memtide._telemetry.recorder import Record, Recorder
from memtide._util.sizes import format_size

_EVERY_S = 0.5
_FEWEST_COLUMNS = 20


class TerminalLine:
    """A line at the bottom of the terminal that `stream` writes to. Any thread may use it."""

    def __init__(self, stream: TextIO, watched: Sequence[TextIO | None]) -> None:
        self._stream = stream
        self._write: Callable[[str], Any] = stream.write
        self._width = 0  # The columns of what is shown.
        self._is_open = False  # Whether the script has written a part of a line.
        self._lock = threading.RLock()  # A signal handler may print while this thread draws.
        self._owner = os.getpid()
        self._undo = [
            _replace_write(each, self._before)
            for each in watched
            if each is not None and each.isatty()  # Python has none where it was closed.
        ]

    def draw(self, text: str) -> None:
        """Shows `text` in place of what is shown, unless the script's own line is open."""
        with self._lock:
            if self._is_open or os.getpid() != self._owner:
                return
            with contextlib.suppress(OSError):  # The terminal is gone: its process goes on.
                columns = os.get_terminal_size(self._stream.fileno()).columns or 80
                text = text[: max(_FEWEST_COLUMNS, columns - 1)]
                self._write(f"\r{text.ljust(self._width)}\r{text}")
                self._stream.flush()
                self._width = len(text)

    def erase(self) -> None:
        """Removes the line."""
        with self._lock:
            if self._width and os.getpid() == self._owner:
                width, self._width = self._width, 0
                with contextlib.suppress(OSError):
                    self._write(f"\r{' ' * width}\r")
                    self._stream.flush()

    def close(self) -> None:
        """Removes the line, and no longer watches what is written."""
        self.erase()
        while self._undo:
            self._undo.pop()()

    def _before(self, text: str) -> None:
        self.erase()
        if text:
            self._is_open = not text.endswith("\n")


def _replace_write(stream: TextIO, before: Callable[[str], None]) -> Callable[[], None]:
    """Calls `before` with each text that is written to `stream`; returns what ends that."""
    original = stream.write

    def write(text: str) -> int:
        before(text)
        return original(text)

    def end() -> None:
        if vars(stream).get("write") is write:  # The script may have replaced it, too.
            del stream.write

    stream.write = write  # type: ignore[method-assign]
    return end


class Progress(Passing):
    """Draws the progress of a run. Passes all events on to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._recorder = recorder
        self._drawn_at = 0.0
        self._line = TerminalLine(sys.stderr, (sys.stdout, sys.stderr))
        # The seconds of an iteration that waits for no chunk, by the first record after the first
        # iteration, which makes states.
        self._unhindered_s: float | None = None

    def end_iteration(self) -> None:
        super().end_iteration()
        record, now = self._recorder.last(), time.monotonic()
        if record is None:
            return
        if self._unhindered_s is None and record.first_iteration > 1:
            self._unhindered_s = (record.seconds - record.waited_s) / record.iterations
        if now - self._drawn_at >= _EVERY_S:
            self._drawn_at = now
            pools = self._recorder.pools
            self._line.draw(line_of(self._recorder.iterations, record, self._unhindered_s, pools))

    def erase(self) -> None:
        """Removes the line, until it is drawn again."""
        self._line.erase()

    def close(self) -> None:
        """Removes the line for good."""
        self._line.close()


def line_of(
    iteration: int, record: Record, unhindered_s: float | None, pools: Sequence[Pool]
) -> str:
    """The line after an iteration: its number, its time, what it would be without
    waits for chunks, the fill of each pool, and what all links move. `record`: the latest one."""
    seconds = record.seconds / record.iterations
    parts = [f"memtide: step {iteration}", f"{seconds:.2f} s"]
    if unhindered_s:
        parts[-1] += f" ({unhindered_s:.2f} s without waits)"
    parts += [f"{p.tier} {p.used_bytes / p.capacity_bytes:.0%}" for p in pools if p.capacity_bytes]
    moved_bytes = sum(record.moved_bytes.values()) / record.seconds if record.seconds else 0
    return " · ".join([*parts, f"{format_size(moved_bytes)}/s"])
