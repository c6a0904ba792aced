"""Exceptions: one class per status code that the native library returns.

Each message is the library's own: what was asked, what the limit is, what to do.
"""

from __future__ import annotations


class MemtideError(RuntimeError):
    """Any failure of memtide. `code` is the gRPC status number, 2 (UNKNOWN) if there is none."""

    code = 2


class InvalidArgument(MemtideError):
    """A call was made with arguments that can never work."""

    code = 3


class DeadlineExceeded(MemtideError):
    """Other leases left no room in time."""

    code = 4


class NotFound(MemtideError):
    """No such chunk or place."""

    code = 5


class PermissionDenied(MemtideError):
    """The daemon refuses this user."""

    code = 7


class OutOfRoom(MemtideError):
    """A pool, a lease budget or another named limit is exhausted."""

    code = 8


class FailedPrecondition(MemtideError):
    """The call does not fit the state: a chunk in use, a forked child, a closed client."""

    code = 9


class Aborted(MemtideError):
    """Another session holds a lease that excludes this one."""

    code = 10


class Unimplemented(MemtideError):
    """The daemon is older than this package."""

    code = 12


class Internal(MemtideError):
    """A bug in memtide."""

    code = 13


class Unavailable(MemtideError):
    """No daemon answers, or it drains."""

    code = 14


class DataLoss(MemtideError):
    """Bytes are gone: their writer died while it held them, or a disk failed."""

    code = 15


class Unauthenticated(MemtideError):
    """The daemon does not know this session: it was restarted, or the session expired."""

    code = 16


class NotInstalled(MemtideError):
    """memtided or libmemtide.so could not be found."""


class UsageError(MemtideError):
    """The command line asks for something that cannot be."""


_BY_CODE = {cls.code: cls for cls in MemtideError.__subclasses__() if cls.code != MemtideError.code}


def from_status(code: int, message: str) -> MemtideError:
    """The exception for a status code of the native library."""
    kind = _BY_CODE.get(code, MemtideError)
    return kind(message or kind.__doc__)  # An older daemon says nothing about a call it lacks.
