"""The C interface (client/memtide.h) in Python: one class, status codes as exceptions.

Nothing here uses torch. Calls copy their arguments, except a `Places`, whose table they read.
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
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from memtide._capi import library
from memtide._capi.library import check, load_library
from memtide._capi.lost_chunks import LostChunks, NamesIn, no_names
from memtide._capi.optimizer_step import Steps

_MOST_SPANS = 256
_CAPSULE_NAME = b"dltensor"  # The capsule points to these bytes, so they live forever.

# Variables that CUDA reads when it begins, and that scripts set.
CUDA_SETTINGS = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING")

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


class Access(IntEnum):
    """The access that a lease allows."""

    READ = 1
    WRITE = 2


class Kind(IntEnum):
    """The kind of a chunk's content. Listings of the daemon count the bytes of each kind."""

    OTHER = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4


class Home(Enum):
    """The lowest tier that chunks ever reach."""

    LOWEST = "lowest"  # The lowest one that the node has.
    HOST = "host"  # Also above SSD: for activations, where chunks are leased at a device.


class Phase(IntEnum):
    """The part of an iteration that a moment belongs to."""

    FORWARD = 1
    BACKWARD = 2
    STEP = 3


@dataclass(frozen=True)
class Properties:
    """The session's range of addresses and limits. Place i is at base + i * chunk_bytes."""

    places: int
    base: int
    chunk_bytes: int
    device_slots: int
    host_slots: int
    ssd_slots: int
    max_chunks: int
    lease_budget: int
    kernel_faults: bool
    # Whether a page fault in the range becomes a lease. A GPU has no page faults: an access without
    # a lease ends the CUDA context (decision 8).
    handles_faults: bool = True
    # DLPack's device type of the addresses (1: CPU, 2: CUDA GPU) and the device's number.
    dl_device: tuple[int, int] = (1, 0)
    # Whether cover_streams makes waits for the GPU shorter.
    needs_streams: bool = False
    device_number: int = 0  # The device that lends the device slots, on its node.
    # The numbers of this client's job and session in inspect_node. Its pid would not do: in another
    # PID namespace, such as a container's, the daemon sees another one.
    job_id: int = 0
    session_id: int = 0  # 0: the daemon is older, and does not say it.


@dataclass(frozen=True)
class Limits:
    """Limits that the daemon enforces in this session's calls; memtide_limits (memtide.h) defines
    them."""

    chunks_per_call: int
    step_manifest_bytes: int
    chunks_per_node: int
    max_wait_s: int
    min_slots: int


@dataclass(frozen=True)
class Stats:
    """Counters of this client since it was opened; memtide_stats (memtide.h) defines them."""

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
    lease_budget: int
    slots: int
    maps: int
    call_nanoseconds: int
    map_nanoseconds: int
    unmap_nanoseconds: int
    protected_iterations: int
    blocking_calls: int


class Places:
    """An immutable set of places, with the table of their numbers that the C interface reads."""

    __slots__ = ("_table", "address", "count", "numbers")

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers: tuple[int, ...] = tuple(sorted(set(numbers)))
        self._table = array("I", self.numbers)
        self.address, self.count = self._table.buffer_info()


def version() -> str:
    """The native library's version."""
    return str(load_library().memtide_version().decode())


def default_chunk_bytes(device_share_bytes: int, host_share_bytes: int) -> int:
    """The chunk size that the library chooses for shares of these sizes; 0: there is none."""
    size = c_uint64()
    check(
        load_library().memtide_default_chunk_bytes(
            device_share_bytes, host_share_bytes, byref(size)
        )
    )
    return size.value


def reinstall_handlers() -> None:
    """Installs the library's SIGSEGV handler again, before any that was installed since."""
    check(load_library().memtide_reinstall_handlers())


class Client(Steps):
    """One session with the daemon and its range of addresses. Safe to use from any thread."""

    def __init__(self, options: library.Options, names_in: NamesIn = no_names) -> None:
        """`names_in`: for errors that lose chunks."""
        self._lib = load_library()
        self._handle = c_void_p()
        self.socket_dir = os.fsdecode(options.socket_dir or b"")
        # Among the sessions of the job; the number also among those of a group.
        self.rank, self.ranks = options.rank or options.group_rank, max(1, options.ranks)
        # Whether commits wait for those of other ranks, of the job or with a job each.
        self.has_other_ranks = max(options.ranks, options.group_ranks) > 1
        # CUDA reads its variables once, and opening a session may start CUDA.
        self.visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.cuda_settings = {name: os.environ.get(name) for name in CUDA_SETTINGS}
        check(self._lib.memtide_open(byref(options), byref(self._handle)))
        properties = library.Properties(struct_bytes=ctypes.sizeof(library.Properties))
        check(self._lib.memtide_get_properties(self._handle, byref(properties)))
        self.properties = Properties(
            places=properties.places,
            base=properties.base or 0,
            chunk_bytes=properties.chunk_bytes,
            device_slots=properties.device_slots,
            host_slots=properties.host_slots,
            ssd_slots=properties.ssd_slots,
            max_chunks=properties.max_chunks,
            lease_budget=properties.lease_budget,
            kernel_faults=bool(properties.kernel_faults),
            handles_faults=bool(properties.handles_faults),
            dl_device=(properties.dl_device_type, properties.dl_device_id),
            needs_streams=bool(properties.needs_streams),
            device_number=properties.device_number,
            job_id=properties.job_id,
            session_id=properties.session_id,
        )
        self.lost = LostChunks(
            lambda place: self.chunk_ids(place, 1)[0],
            self.properties.base,
            self.properties.chunk_bytes,
            names_in,
        )
        limits = library.Limits(struct_bytes=ctypes.sizeof(library.Limits))
        check(self._lib.memtide_get_limits(self._handle, byref(limits)))
        self.limits = Limits(
            **{name: getattr(limits, name) for name in Limits.__dataclass_fields__}
        )

    def close(self) -> None:
        """Ends the session. REQUIRES: no tensor uses the range of addresses."""
        self._lib.memtide_close(self._handle)
        self._handle = c_void_p()

    def allocate(self, kind: Kind, count: int, home: Home = Home.LOWEST) -> int:
        """Allocates `count` chunks at consecutive places and returns the first. Not zeroed, but for
        those which scripts, or ranks on devices, may share (common_parameters.py): what is between
        their tensors is then the same in all of them."""
        first = c_uint32()
        allocate = self._lib.memtide_allocate_undefined
        on_device = self.properties.device_slots > 0
        if kind is Kind.PARAMETER or (kind is Kind.OPTIMIZER_STATE and on_device):
            allocate = self._lib.memtide_allocate
        if home is Home.HOST:
            allocate = self._lib.memtide_allocate_above_ssd
        check(allocate(self._handle, int(kind), count, byref(first)))
        return first.value

    def discard(self, places: Places) -> None:
        """Ends the content of the chunks and keeps the chunks: nothing is written back, and their
        memory is free for others. FailedPrecondition: one is in use."""
        check(self._lib.memtide_discard(self._handle, places.address, places.count))

    def offer(self, places: Places) -> list[int]:
        """Offers chunks that this process will not write soon to other sessions of this user.
        Returns the places whose content is shared now."""
        shared = array("B", bytes(places.count))
        check(
            self._lib.memtide_offer(
                self._handle, places.address, places.count, shared.buffer_info()[0]
            )
        )
        return [p for p, is_shared in zip(places.numbers, shared, strict=True) if is_shared]

    def offer_when_written(self, places: Places) -> None:
        """Offers chunks that this process writes, and other sessions of this user in the same way.
        The daemon looks for equal ones itself whenever they were written."""
        check(self._lib.memtide_offer_when_written(self._handle, places.address, places.count))

    def duplicate(self, places: Places, copies: int) -> int:
        """Makes `copies` new chunks with the content of each of these, at consecutive places: in
        the order of `places`, again and again. Returns the first. No byte is copied before one of
        them is written, which needs room of its own then.

        ResourceExhausted: there is no room. FailedPrecondition: the job has a name, or no host
        memory, or a chunk holds nothing yet. Aborted: a chunk is in use."""
        first = c_uint32()
        check(
            self._lib.memtide_duplicate(
                self._handle, places.address, places.count, copies, byref(first)
            )
        )
        return first.value

    def free(self, first_place: int, count: int) -> None:
        """Frees the chunks at `count` consecutive places."""
        check(self._lib.memtide_free(self._handle, first_place, count))

    def acquire(self, places: Places, access: Access, timeout_ms: int = -1) -> None:
        """Leases and maps the chunks, all or none, and adds one use to each."""
        with self.lost.named(places.numbers):
            check(
                self._lib.memtide_acquire(
                    self._handle, places.address, places.count, int(access), timeout_ms
                )
            )

    def release(self, places: Places) -> None:
        """Removes one use from each chunk."""
        check(self._lib.memtide_release(self._handle, places.address, places.count))

    def cover_streams(self, streams: Iterable[int]) -> None:
        """Names CUstreams: work on chunks is launched on these and on those of earlier calls only.
        FailedPrecondition: needs_streams is False."""
        table = array("Q", streams)
        address, count = table.buffer_info()
        check(self._lib.memtide_cover_streams(self._handle, address, count))

    def cover_all_streams(self) -> None:
        """Any stream may be used from now on. FailedPrecondition: needs_streams is False."""
        check(self._lib.memtide_cover_all_streams(self._handle))

    def moment(self, phase: Phase, name: str, own_device_bytes: int, own_host_bytes: int) -> None:
        """Begins a moment: chunks that are leased from now on are used in it."""
        check(
            self._lib.memtide_moment(
                self._handle, phase, name.encode(), own_device_bytes, own_host_bytes
            )
        )

    def end_iteration(self) -> None:
        """Ends an iteration: the access predictor expects its moments again, in the same order."""
        check(self._lib.memtide_end_iteration(self._handle))

    def protect(self) -> None:
        """Makes chunks inaccessible without a lease until two iterations have ended."""
        check(self._lib.memtide_protect(self._handle))

    def evict(self, places: Places) -> None:
        """Releases idle leases on these, and returns when their chunks are on the home tier."""
        check(self._lib.memtide_evict(self._handle, places.address, places.count))

    def flush(self) -> None:
        """Releases all idle leases."""
        check(self._lib.memtide_flush(self._handle))

    def resize(self, device_share_bytes: int, timeout_ms: int = -1) -> None:
        """Changes the job's share of the device pool; returns when the slots beyond it are free."""
        check(self._lib.memtide_resize(self._handle, device_share_bytes, timeout_ms))

    def wrap(self, address: int, size_bytes: int) -> Any:
        """A DLPack capsule over bytes of the range: one dimension of uint8.

        When the storage of the tensor over it ends, `take_returned` returns the span. REQUIRES: the
        caller makes a tensor from the capsule; otherwise its bytes are never returned.
        """
        tensor = c_void_p()
        check(self._lib.memtide_wrap(self._handle, address, size_bytes, byref(tensor)))
        return _new_capsule(tensor, _CAPSULE_NAME, None)

    def take_returned(self) -> list[tuple[int, int]]:
        """Address and bytes of each wrapped span whose tensor has ended since the last call."""
        spans = (library.Span * _MOST_SPANS)()
        count = c_size_t()
        returned: list[tuple[int, int]] = []
        while True:
            check(self._lib.memtide_take_returned(self._handle, spans, _MOST_SPANS, byref(count)))
            returned += [(span.address, span.bytes) for span in spans[: count.value]]
            if count.value < _MOST_SPANS:
                return returned

    def stats(self) -> Stats:
        """This client's counters."""
        stats = library.Stats(struct_bytes=ctypes.sizeof(library.Stats))
        check(self._lib.memtide_get_stats(self._handle, byref(stats)))
        return Stats(**{name: getattr(stats, name) for name in Stats.__dataclass_fields__})
