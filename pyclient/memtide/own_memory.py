"""What this process needs beside chunks. Cheap enough to be asked while it trains."""

from __future__ import annotations

import os
import sys

_CUDA = 2  # As DLPack has it.
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def host_bytes() -> int:
    """Memory that is no file's and no chunk's (RssAnon); costs about 7 us."""
    # Opened each time: an open file would stay the parent's in a forked child.
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        resident, shared = os.read(file, 256).split()[1:3]
    finally:
        os.close(file)
    return (int(resident) - int(shared)) * _PAGE_BYTES


def device_bytes(dl_device: tuple[int, int]) -> int:
    """What torch's allocator has given out on a GPU: nothing of it is in chunks. Else 0."""
    kind, ordinal = dl_device
    torch = sys.modules.get("torch")
    if kind != _CUDA or torch is None:
        return 0
    stats = torch.cuda.memory_stats_as_nested_dict(ordinal)  # Empty until CUDA has begun.
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0
