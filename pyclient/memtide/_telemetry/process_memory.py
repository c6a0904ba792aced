"""The memory that processes use outside chunks. Cheap enough to read while they train."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide._util.devices import gpu_module, type_name

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def host_bytes() -> int:
    """Anonymous memory of the process (RssAnon), to which chunks do not count. Takes about 7 us."""
    # Opened at each call: in a forked child, an inherited descriptor would show the parent.
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        resident, shared = os.read(file, 256).split()[1:3]
    finally:
        os.close(file)
    return (int(resident) - int(shared)) * _PAGE_BYTES


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, files left out: their pages are the kernel's to reclaim."""

    anonymous_bytes: int = 0
    shared_bytes: int = 0  # Pages of memfds and tmpfs: in a daemon, the slots of its host pool.


def resident_of(pid: int) -> Resident:
    """Resident memory of another process; nothing if it has ended. Takes about 30 us."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return Resident()
    sizes = {"RssAnon": 0, "RssShmem": 0}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in sizes:
            sizes[name] = int(value.split()[0]) * 1024  # In KiB.
    return Resident(sizes["RssAnon"], sizes["RssShmem"])


def device_bytes(dl_device: tuple[int, int]) -> int:
    """Bytes that torch's allocator has allocated on a GPU, none of them in chunks; 0 for a CPU, and
    where a script uses another allocator (RMM), which keeps no such count."""
    stats = allocator_stats(dl_device)
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0


def allocator_stats(dl_device: tuple[int, int]) -> dict[str, Any]:
    """What torch's allocator counts on a GPU. Empty: before the GPU is used, for a CPU, and where
    the allocator counts nothing."""
    gpu = gpu_module(type_name(dl_device))
    if gpu is None:
        return {}
    try:
        return gpu.memory_stats_as_nested_dict(dl_device[1])
    except RuntimeError:
        return {}
