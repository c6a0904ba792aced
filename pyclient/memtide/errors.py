"""Exceptions: one class for each status code that the native library returns.

The messages are the library's: they name the object, the limit and the remedy.
"""

from __future__ import annotations


class MemtideError(RuntimeError):
    """The base class of memtide's exceptions. `code` is the gRPC status code; 2 is UNKNOWN."""

    code = 2


class InvalidArgument(MemtideError):
    """The arguments of the call are wrong in any state of the daemon."""

    code = 3


class DeadlineExceeded(MemtideError):
    """The call did not end before its deadline; most often, other leases hold the memory."""

    code = 4


class NotFound(MemtideError):
    """There is no such chunk, place, job or other object."""

    code = 5


class PermissionDenied(MemtideError):
    """The daemon does not let this user make the call."""

    code = 7


class ResourceExhausted(MemtideError):
    """A pool, a lease budget or another named limit is exhausted."""

    code = 8


class NoRoom(ResourceExhausted):
    """There is no room for a tensor in what this process may have of the lowest pool."""


class FailedPrecondition(MemtideError):
    """The call does not fit the present state: a chunk in use, a forked child, a closed client."""

    code = 9


class Aborted(MemtideError):
    """Another session holds a lease that conflicts with this call."""

    code = 10


class Unimplemented(MemtideError):
    """The daemon does not have this call: it is older than this package."""

    code = 12


class Internal(MemtideError):
    """An internal error: a bug in memtide."""

    code = 13


class Unavailable(MemtideError):
    """No daemon answers, or the daemon is draining."""

    code = 14


class DataLoss(MemtideError):
    """Content is lost: the writer of a chunk died while it held the lease, or a disk failed."""

    code = 15


class Unauthenticated(MemtideError):
    """The daemon does not know this session: the daemon restarted, or the session expired."""

    code = 16


class NotInstalled(MemtideError):
    """memtided or libmemtide.so was not found."""


class UsageError(MemtideError):
    """The command line is wrong, or asks for what cannot be done."""


_BY_CODE = {cls.code: cls for cls in MemtideError.__subclasses__() if cls.code != MemtideError.code}


def from_status(code: int, message: str) -> MemtideError:
    """The exception for a status code of the native library."""
    kind = _BY_CODE.get(code, MemtideError)
    return kind(message or kind.__doc__)  # gRPC sends no message for a call that a daemon lacks.
