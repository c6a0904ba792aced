"""Runs a program and measures the memory of its process and of the daemon that it starts; of a
launcher, that of its ranks, too.

The memory that counts is that of docs/budget.md: anonymous memory of all these processes, and
shared memory once, as they map the same pages of the pool. Data loaders and other children do not
count.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DAEMON = "memtided"
_READ_EVERY_S = 0.005
_FIND_EVERY = 20  # Readings between two looks for daemons and ranks.


@dataclass(frozen=True)
class Run:
    """How a program ended, what it printed, and the most memory that readings showed."""

    status: int | None  # None: it took too long.
    seconds: float
    peak_bytes: int
    output: str
    errors: str


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    most_seconds: float,
    *,
    is_launcher: bool = False,
) -> Run:
    """Runs a command in `folder`, in which its output goes to two files. `is_launcher`: its
    children are ranks."""
    began = time.monotonic()
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    peak_bytes, readings = 0, 0
    others: list[int] = []
    with out.open("wb") as output, err.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=errors
        )
        try:
            while process.poll() is None and time.monotonic() - began < most_seconds:
                if readings % _FIND_EVERY == 0:
                    others = children_of(process.pid, "" if is_launcher else _DAEMON)
                readings += 1
                peak_bytes = max(peak_bytes, used_bytes([process.pid, *others]))
                time.sleep(_READ_EVERY_S)
            status = process.poll()
        finally:
            process.kill()
            process.wait()
    seconds = time.monotonic() - began
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    return Run(status, seconds, peak_bytes, *texts)


def used_bytes(pids: Sequence[int]) -> int:
    """Anonymous memory of processes together, and the most shared memory that one of them maps."""
    sizes = [_resident(pid) for pid in pids]
    return sum(anonymous for anonymous, _ in sizes) + max(shared for _, shared in sizes)


def _resident(pid: int) -> tuple[int, int]:
    """Anonymous and shared resident bytes of a process; 0 if it has ended."""
    sizes = {"RssAnon": 0, "RssShmem": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024
    return sizes["RssAnon"], sizes["RssShmem"]


def children_of(pid: int, name: str) -> list[int]:
    """The children of a process that have this name, or any if it is empty."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if name in ("", Path(f"/proc/{child}/comm").read_text().strip()):
                    found.append(int(child))
    return found
