"""How a thread computes with floating-point numbers: whether it takes subnormal numbers for zero,
as after torch.set_flush_denormal, and how it rounds.

The processor has these modes for each thread, and a new thread has those of the one that starts it.
So the threads that compute step parts get those of the thread that steps. They are the control bits
of MXCSR, as the C library's fegetenv has them on x86-64; on other processors no modes are known,
and all count as the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

DEFAULT = 0x1F80 if platform.machine() == "x86_64" else 0
_EXCEPTIONS = 0x3F  # The bits that say what has happened before.
_MXCSR = 7
# The size of fenv_t in words, of which MXCSR is the last one.
_Environment = ctypes.c_uint32 * (_MXCSR + 1)
_libm = ctypes.CDLL("libm.so.6") if DEFAULT else None


def present() -> int:
    """The modes of the calling thread."""
    if _libm is None:
        return DEFAULT
    environment = _Environment()
    _libm.fegetenv(environment)
    return environment[_MXCSR] & ~_EXCEPTIONS


@contextlib.contextmanager
def set_to(modes: int) -> Iterator[None]:
    """In the block, the calling thread has these modes."""
    before = present()
    if before == modes or _libm is None:
        yield
        return
    _set(modes)
    try:
        yield
    finally:
        _set(before)


def _set(modes: int) -> None:
    assert _libm is not None
    environment = _Environment()
    _libm.fegetenv(environment)
    environment[_MXCSR] = modes
    _libm.fesetenv(environment)
