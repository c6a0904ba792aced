"""What a run reads, writes and holds in memory, as its kernel counts it: of it and of its daemon.

Bytes are those of /proc/PID/io that went to or came from a disk; a page cache's are not among them
where direct I/O is used, which both sides of bench/peers do. Memory is what /proc/PID/status calls
anonymous, of all the processes, and the largest of their shared memory, once: the daemon's pools
are mapped by the trainer too. It is looked at some twenty times a second.
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
    """Of a step between the two that were named: bytes. And the most memory that was seen."""

    read_bytes: float
    written_bytes: float
    memory_bytes: int


def disk_bytes(io: str) -> tuple[int, int]:
    """Read and written, from the text of /proc/PID/io."""
    counts = dict(re.findall(r"^(\w+): (\d+)$", io, re.M))
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def resident_bytes(status: str) -> tuple[int, int]:
    """Anonymous and shared, from the text of /proc/PID/status; nothing where it has ended."""
    kilobytes = dict(re.findall(r"^Rss(Anon|Shmem):\s+(\d+) kB$", status, re.M))
    return int(kilobytes.get("Anon", 0)) * 1024, int(kilobytes.get("Shmem", 0)) * 1024


def together(residents: list[tuple[int, int]]) -> int:
    """Bytes of memory of processes that share theirs."""
    return sum(anonymous for anonymous, _ in residents) + max(shared for _, shared in residents)


def until_end(
    process: subprocess.Popen[bytes], log: Path, daemon: int | None, steps: tuple[int, int]
) -> Cost:
    """Watches the process to its end; `steps`: after which lines of the log bytes are counted."""
    watched = [process.pid, *([daemon] if daemon else [])]
    first = latest = (0, 0)
    memory = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # It has just ended, or has no log yet.
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
