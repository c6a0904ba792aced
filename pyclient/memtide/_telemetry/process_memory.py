"""The memory that this process uses outside chunks. Cheap enough to call while it trains."""

from __future__ import annotations

import os

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


def device_bytes(dl_device: tuple[int, int]) -> int:
    """Bytes that torch's allocator has allocated on a GPU, none of them in chunks; 0 for a CPU, and
    where a script uses another allocator (RMM), which keeps no such count."""
    gpu = gpu_module(type_name(dl_device))
    if gpu is None:
        return 0
    try:
        stats = gpu.memory_stats_as_nested_dict(dl_device[1])  # Empty before CUDA is initialized.
    except RuntimeError:
        return 0
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0
