"""The C interface (client/memtide.h) in Python: one class, status codes as exceptions.

Nothing here knows about torch. Every call but those on a `Places` table copies its arguments.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Iterable
from ctypes import (
    byref,
    c_char_p,
    c_size_t,
    c_uint32,
    c_void_p,
)
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from memtide import _library
from memtide._library import check, library
from memtide._steps import Steps

_MOST_SPANS = 256
_CAPSULE_NAME = b"dltensor"  # The capsule keeps a pointer to it.

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


class Access(IntEnum):
    """What a lease allows."""

    READ = 1
    WRITE = 2


class Kind(IntEnum):
    """What a chunk holds; listings count each apart."""

    OTHER = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4


class Phase(IntEnum):
    """What part of an iteration a moment belongs to."""

    FORWARD = 1
    BACKWARD = 2
    STEP = 3


@dataclass(frozen=True)
class Properties:
    """What the session was given. Place i is at base + i * chunk_bytes."""

    places: int
    base: int
    chunk_bytes: int
    device_slots: int
    host_slots: int
    ssd_slots: int
    max_chunks: int
    lease_budget: int
    kernel_faults: bool
    # A touch of what is not mapped becomes a lease; where not (on a GPU), it is fatal.
    touches: bool = True
    # Of the addresses, as DLPack has it: 1 the CPU's, 2 a CUDA GPU's, and which one.
    dl_device: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Stats:
    """Counters of this client since it was opened; memtide_stats says what each means."""

    chunks: int
    leases_held: int
    leases_in_use: int
    acquires: int
    acquire_hits: int
    faults: int
    upgrades: int
    releases: int
    calls: int
    wait_nanoseconds: int
    lease_budget: int = 0


@dataclass(frozen=True)
class OpenOptions:
    """How to open a session; zeros and empty texts mean the library's defaults."""

    socket_dir: str = ""
    job_name: str = ""
    program: str = ""
    chunk_bytes: int = 0
    device_share_bytes: int = 0
    host_share_bytes: int = 0
    ssd_share_bytes: int = 0
    address_bytes: int = 0
    # How long the job's chunks outlive its last session.
    time_to_live_s: int = 0


def device_name(dl_device: tuple[int, int]) -> str:
    """As torch writes it: "cpu", "cuda:0"."""
    kind, ordinal = dl_device
    return "cpu" if kind == 1 else f"cuda:{ordinal}"


class Places:
    """An immutable set of places, in the form that the C interface takes."""

    __slots__ = ("_table", "address", "count", "numbers")

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers: tuple[int, ...] = tuple(sorted(set(numbers)))
        self._table = array("I", self.numbers)
        self.address, self.count = self._table.buffer_info()


def version() -> str:
    """The native library's version."""
    return str(library().memtide_version().decode())


def reinstall_handlers() -> None:
    """Puts the library's SIGSEGV handler back in front."""
    check(library().memtide_reinstall_handlers())


class Client(Steps):
    """One session with the daemon and its range of addresses. Safe to use from any thread."""

    def __init__(self, options: OpenOptions) -> None:
        self._lib = library()
        self._handle = c_void_p()
        self.socket_dir = options.socket_dir
        # As CUDA sees it, which opening may begin to use.
        self.visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        wish = _library.Options(
            struct_bytes=ctypes.sizeof(_library.Options),
            socket_dir=os.fsencode(options.socket_dir) or None,
            job_name=options.job_name.encode() or None,
            program=options.program.encode() or None,
            chunk_bytes=options.chunk_bytes,
            device_share_bytes=options.device_share_bytes,
            host_share_bytes=options.host_share_bytes,
            ssd_share_bytes=options.ssd_share_bytes,
            address_bytes=options.address_bytes,
            time_to_live_s=options.time_to_live_s,
        )
        check(self._lib.memtide_open(byref(wish), byref(self._handle)))
        got = _library.Properties(struct_bytes=ctypes.sizeof(_library.Properties))
        check(self._lib.memtide_get_properties(self._handle, byref(got)))
        self.properties = Properties(
            places=got.places,
            base=got.base or 0,
            chunk_bytes=got.chunk_bytes,
            device_slots=got.device_slots,
            host_slots=got.host_slots,
            ssd_slots=got.ssd_slots,
            max_chunks=got.max_chunks,
            lease_budget=got.lease_budget,
            kernel_faults=bool(got.kernel_faults),
            touches=bool(got.touches),
            dl_device=(got.dl_device_type, got.dl_device_id),
        )

    def close(self) -> None:
        """Ends the session. REQUIRES: no tensor over the range is left."""
        self._lib.memtide_close(self._handle)
        self._handle = c_void_p()

    def allocate(self, kind: Kind, count: int) -> int:
        """Binds `count` new chunks to consecutive places; returns the first. Not zeroed."""
        first = c_uint32()
        check(self._lib.memtide_allocate_undefined(self._handle, int(kind), count, byref(first)))
        return first.value

    def free(self, first_place: int, count: int) -> None:
        """Ends the chunks at these places."""
        check(self._lib.memtide_free(self._handle, first_place, count))

    def acquire(self, places: Places, access: Access, timeout_ms: int = -1) -> None:
        """Leases and maps the chunks, all or none, and counts one use on each."""
        check(
            self._lib.memtide_acquire(
                self._handle, places.address, places.count, int(access), timeout_ms
            )
        )

    def release(self, places: Places) -> None:
        """Takes one use off each."""
        check(self._lib.memtide_release(self._handle, places.address, places.count))

    def moment(self, phase: Phase, name: str, own_device_bytes: int, own_host_bytes: int) -> None:
        """A moment begins: chunks leased or touched from now on are used in it."""
        check(
            self._lib.memtide_moment(
                self._handle, phase, name.encode(), own_device_bytes, own_host_bytes
            )
        )

    def end_iteration(self) -> None:
        """An iteration ends: its moments are expected again, in the same order."""
        check(self._lib.memtide_end_iteration(self._handle))

    def prefetch(self, places: Places) -> None:
        """Starts to bring chunks close."""
        check(self._lib.memtide_prefetch(self._handle, places.address, places.count))

    def evict(self, places: Places) -> None:
        """Gives idle leases on these back, and returns when their chunks are on the lowest tier."""
        check(self._lib.memtide_evict(self._handle, places.address, places.count))

    def flush(self) -> None:
        """Gives all idle leases back."""
        check(self._lib.memtide_flush(self._handle))

    def resize(self, device_share_bytes: int, timeout_ms: int = -1) -> None:
        """Changes the job's share of the device pool; returns when what it lost is free."""
        check(self._lib.memtide_resize(self._handle, device_share_bytes, timeout_ms))

    def wrap(self, address: int, size_bytes: int) -> Any:
        """A DLPack capsule over bytes of the range: one dimension of uint8. Made into a tensor, it
        is returned when the tensor's storage ends. REQUIRES: it is made into one."""
        tensor = c_void_p()
        check(self._lib.memtide_wrap(self._handle, address, size_bytes, byref(tensor)))
        return _new_capsule(tensor, _CAPSULE_NAME, None)

    def take_returned(self) -> list[tuple[int, int]]:
        """Address and bytes of each span whose tensors have ended since the last call."""
        spans = (_library.Span * _MOST_SPANS)()
        count = c_size_t()
        taken: list[tuple[int, int]] = []
        while True:
            check(self._lib.memtide_take_returned(self._handle, spans, _MOST_SPANS, byref(count)))
            taken += [(span.address, span.size_bytes) for span in spans[: count.value]]
            if count.value < _MOST_SPANS:
                return taken

    def stats(self) -> Stats:
        """This client's counters."""
        got = _library.Stats(struct_bytes=ctypes.sizeof(_library.Stats))
        check(self._lib.memtide_get_stats(self._handle, byref(got)))
        return Stats(**{name: getattr(got, name) for name in Stats.__dataclass_fields__})
