"""Measures what a run and its daemon read, write and use of memory, as the kernel counts it.

Bytes read and written are the disk's counters in /proc/PID/io, and exact because both sides of
bench/peers use direct I/O, without the page cache. Memory is the anonymous memory of all processes
in /proc/PID/status, plus the largest shared memory of any one, since the trainer maps the daemon's
pools too. It is sampled every `_PERIOD_S`.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_PERIOD_S = 0.05


@dataclass(frozen=True)
class Cost:
    """The mean bytes of a step after warm-up, and the peak of memory over the whole run."""

    read_bytes: float
    written_bytes: float
    memory_bytes: int


def disk_bytes(io: str) -> tuple[int, int]:
    """Returns bytes read and written, from the text of /proc/PID/io."""
    counts = dict(re.findall(r"^(\w+): (\d+)$", io, re.M))
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def resident_bytes(status: str) -> tuple[int, int]:
    """Returns anonymous and shared bytes, from the text of /proc/PID/status.

    Both are zero for a process that has ended.
    """
    kilobytes = dict(re.findall(r"^Rss(Anon|Shmem):\s+(\d+) kB$", status, re.M))
    return int(kilobytes.get("Anon", 0)) * 1024, int(kilobytes.get("Shmem", 0)) * 1024


def together(residents: list[tuple[int, int]]) -> int:
    """The memory of processes that share one segment: all anonymous bytes, and the segment once."""
    return sum(anonymous for anonymous, _ in residents) + max(shared for _, shared in residents)


def until_end(
    process: subprocess.Popen[bytes], log: Path, daemon: int | None, steps: tuple[int, int]
) -> Cost:
    """Observes the process until it ends, and counts bytes between two steps.

    A step has ended when the log has its line.
    """
    watched = [process.pid, *([daemon] if daemon else [])]
    first = latest = (0, 0)
    memory = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # The process may have just ended, or have no log yet.
            memory = max(memory, together([resident_bytes(_of(pid, "status")) for pid in watched]))
            lines = log.read_bytes().count(b"\n")
            if lines <= steps[1]:
                counts = [disk_bytes(_of(pid, "io")) for pid in watched]
                latest = (sum(read for read, _ in counts), sum(wrote for _, wrote in counts))
            if lines <= steps[0]:
                first = latest
        time.sleep(_PERIOD_S)
    count = steps[1] - steps[0]
    return Cost((latest[0] - first[0]) / count, (latest[1] - first[1]) / count, memory)


def _of(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
