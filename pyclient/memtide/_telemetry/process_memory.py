"""The memory that processes use outside chunks. Cheap enough to read while they train."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide._daemon.memory_cgroup import machine_bytes
from memtide._util.devices import gpu_module, type_name

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def host_bytes() -> int:
    """Anonymous memory of this process (RssAnon), to which chunks do not count. Takes 7 us."""
    return _anonymous_bytes("self")


def host_bytes_of(pid: int) -> int:
    """The same of another process; 0 if it has ended."""
    try:
        return _anonymous_bytes(str(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _anonymous_bytes(process: str) -> int:
    # Opened at each call: in a forked child, an inherited descriptor would show the parent.
    file = os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        resident, shared = os.read(file, 256).split()[1:3]
    finally:
        os.close(file)
    return (int(resident) - int(shared)) * _PAGE_BYTES


def available_host_bytes() -> int:
    """Host memory that new programs would have without swapping, as the kernel estimates it."""
    _, available_bytes = machine_bytes()
    return available_bytes


@dataclass(frozen=True)
class Usage:
    """Memory of this process."""

    anonymous_bytes: int  # Now.
    most_bytes: int  # Anonymous, at its most since the last reading, as far as the kernel tells.
    most_resident_bytes: int  # Anonymous and shared, at its most since the last reading.


class UsageReader:
    """Reads this process's memory, peaks included. The kernel keeps the most that was resident
    (VmHWM), and forgets it when `clear_refs` is written. Takes about 30 us. One reader is to be
    used in a process, by one thread at a time."""

    def __init__(self) -> None:
        self._before = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0, "VmHWM": 0}
        self._is_first = True

    def read(self) -> Usage:
        """Reads it now."""
        now, before = _status_of("self", self._before), self._before
        resident_bytes = now["RssAnon"] + now["RssFile"] + now["RssShmem"]
        resident_before_bytes = before["RssAnon"] + before["RssFile"] + before["RssShmem"]
        rise_bytes = max(0, now["VmHWM"] - max(resident_bytes, resident_before_bytes))
        # A kernel that does not forget a peak shows it again.
        if self._is_first or now["VmHWM"] == before["VmHWM"]:
            rise_bytes = 0
        self._is_first = not _forget_peak()
        self._before = now
        most_bytes = max(now["RssAnon"], before["RssAnon"]) + rise_bytes
        most_resident_bytes = now["VmHWM"] - now["RssFile"] if rise_bytes else 0
        return Usage(now["RssAnon"], most_bytes, most_resident_bytes)


def _forget_peak() -> bool:
    try:
        file = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, b"5")
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _status_of(process: int | str, names: Collection[str]) -> dict[str, int]:
    """Sizes that the kernel reports of a process; 0 if it has ended."""
    sizes = dict.fromkeys(names, 0)
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024  # In KiB.
    return sizes


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, files left out: their pages are the kernel's to reclaim."""

    anonymous_bytes: int = 0
    shared_bytes: int = 0  # Pages of memfds and tmpfs: in a daemon, the slots of its host pool.


def resident_of(pid: int) -> Resident:
    """Resident memory of another process; nothing if it has ended. Takes about 30 us."""
    sizes = _status_of(pid, ("RssAnon", "RssShmem"))
    return Resident(sizes["RssAnon"], sizes["RssShmem"])


def device_bytes(dl_device: tuple[int, int]) -> int:
    """Bytes that torch's allocator has allocated on a GPU, none of them in chunks; 0 for a CPU, and
    where a script uses another allocator (RMM), which keeps no such count."""
    stats = allocator_stats(dl_device)
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0


def allocator_stats(dl_device: tuple[int, int]) -> dict[str, Any]:
    """The counts of torch's allocator on a GPU. Empty: before the GPU is used, for a CPU, and where
    the allocator counts nothing."""
    gpu = gpu_module(type_name(dl_device))
    if gpu is None:
        return {}
    try:
        return gpu.memory_stats_as_nested_dict(dl_device[1])
    except RuntimeError:
        return {}
