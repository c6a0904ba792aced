"""Makes glibc's allocator return to the system what the script frees.

The allocator keeps freed blocks below its mmap threshold for later requests, and with each larger
block that is freed it raises this threshold, up to 32 MiB. Then the tensors of one iteration stay
resident after they have ended, and a memory budget cannot give their pages to anyone else.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

# Parameters of mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Blocks from here on have a mapping of their own, which ends with them. A smaller threshold costs
# a system call for more blocks; what lies below it is little, and `trim` returns its free pages.
_MAPPED_FROM_BYTES = 256 * 2**10


def return_freed_blocks() -> bool:
    """Returns blocks of 256 KiB or more to the system as soon as they are freed, from now on.
    Blocks that are freed already are returned as `trim` does. False: this is not glibc, and nothing
    has changed."""
    library = _libc()
    if library is None:
        return False
    # A threshold that is set stays what it is.
    library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _MAPPED_FROM_BYTES)
    return trim()


def trim() -> bool:
    """Returns all free pages of the allocator to the system. False: there were none."""
    library = _libc()
    return library is not None and bool(library.malloc_trim(0))


@functools.cache
def _libc() -> Any:
    """The C library of this process; None: it is not glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
