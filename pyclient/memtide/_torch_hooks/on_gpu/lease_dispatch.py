"""Lease dispatch: leases chunks for every torch operation on a GPU.

GPU memory has no page faults that could answer an access without a lease: it ends the CUDA context
(docs/decisions/0008). So a `TorchDispatchMode` sees each operation with its tensors, and leases
their chunks while it is launched, whether or not a hook has leased them. A chunk that is already
leased costs one more count, any other a fetch.

If an operation finds too little GPU memory for its results, chunks are evicted from the device,
their memory returns to CUDA, and the operation is run again.

Collectives that are launched, or that end, after their call keep leases for longer
(gpu_collectives.py).

Accesses that no dispatch mode sees are fatal on chunks: kernels that take addresses past torch's
dispatcher (raw Triton, extensions that do not register their operations, CuPy and Numba over a
tensor), unless `memtide.hold` leases what they use. Compiled code has leases of its own
(compiled_leases.py), and CUDA graphs are refused.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

import torch

from memtide._capi.client import Places
from memtide._memory.autocast_copies import CAST
from memtide._memory.device_oom import (
    DeviceOomHandler,
    is_shortage,
    is_shortage_of_a_library,
)
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.on_gpu.element_slices import slices_of
from memtide._torch_hooks.op_schema import (
    are_fake,
    calls_operations,
    counting_writes,
    has_own_dispatch,
    is_higher_order,
    name_of,
    only_views,
    pieces_of,
    pins_host_memory,
    run,
    run_pieces,
    touched_by,
    touches_none,
    writes_arguments,
)
from memtide._torch_hooks.own_mode import OwnMode
from memtide.errors import ResourceExhausted

_NONE: frozenset[int] = frozenset()
_COPY = torch.ops.aten.copy_.default


@lru_cache(maxsize=4096)  # Steps repeat their operations.
def _places(numbers: frozenset[int]) -> Places:
    return Places(numbers)


def from_own_gpu(target: torch.Tensor, source: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    """The arguments of a copy between tensors of which one is in a chunk. torch copies on the
    source's GPU, and chunks are open to their own alone: what another GPU has comes first."""
    if source.device != target.device and source.device.type == target.device.type:
        source = source.to(target.device)
    return target, source, *rest


class LeaseDispatchMode(OwnMode):
    """Leases for every operation of one thread."""

    def __init__(self, memory: ManagedMemory, elastic: DeviceOomHandler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._addresses = memory.addresses
        self._ledger = memory.ledger
        self._elastic = elastic
        self._costs = memory.costs
        self._copies = memory.copies
        self._novelty = memory.novelty
        self._known = memory.novelty.operations
        self._began_ns = 0  # When the operation began that is measured; 0: none is.
        # While somebody observes: the places that operations have read, and have written.
        self.observed: tuple[set[int], set[int]] | None = None

    # As OwnMode's, without a call between: it runs for each operation (decision 8).
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if types and has_own_dispatch(types):
            # A tensor made of others runs operations on those, which arrive here one by one.
            return func(*args, **kwargs) if are_fake(types) else NotImplemented
        if not self._addresses.here:
            return func(*args, **kwargs)
        if only_views(func):
            if self._copies.exist:  # Torch makes no view of an empty storage.
                return self._run(func, args, kwargs, _NONE, _NONE)
            return func(*args, **kwargs)
        if func not in self._known:
            self._novelty.see_operation(func)
        self._began_ns = self._costs.begins_sample()
        if touches_none(self._addresses, args) and (
            not kwargs or touches_none(self._addresses, kwargs.values())
        ):
            return self._run(func, args, kwargs, _NONE, _NONE)
        reads, writes = touched_by(self._addresses, func, args, kwargs)
        if self.observed is not None:
            self.observed[0].update(reads)
            self.observed[1].update(writes)
        if func is _COPY:
            args = from_own_gpu(*args)
        try:
            return self._run(func, args, kwargs, reads, writes)
        except ResourceExhausted as error:
            # Halves, and halves of those that do not fit either: fewer calls than one an index.
            pieces = pieces_of(func, args, kwargs, most=2)
            slices = None
            if pieces is None and len(reads | writes) > self._ledger.budget:
                slices = slices_of(self._memory, func, args, kwargs)
            if pieces is None and slices is None:
                raise self._too_many(func, reads | writes) from error

        def run_one(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self.__torch_dispatch__(func, types, args, kwargs)

        if pieces is not None:
            return run_pieces(func, pieces, run_one)
        assert slices is not None
        # Below this mode, a slice has a version of its own.
        counting_writes(func, args, lambda: [run_one(*each) for each in slices])
        return args[0] if func._schema.returns else None

    def _run(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: Set[int],
        writes: Set[int],
    ) -> Any:
        try:
            return self._run_once(func, args, kwargs, reads, writes)
        except RuntimeError as error:
            if not is_shortage(error) or pins_host_memory(func, kwargs):
                raise
            # The operation may have written some of these already: no second run. Torch allocates
            # results before it launches anything, but a library may be short at any moment.
            if writes or (is_shortage_of_a_library(error) and writes_arguments(func)):
                raise
            short = error
        return self._elastic.retry(short, lambda: self._run_once(func, args, kwargs, reads, writes))

    def _run_once(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: Set[int],
        writes: Set[int],
    ) -> Any:
        if self._copies.exist:
            return self._run_beside_copies(func, args, kwargs, reads, writes)
        return self._run_leased(func, args, kwargs, reads, writes)

    def _run_beside_copies(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: Set[int],
        writes: Set[int],
    ) -> Any:
        """As `_run_leased`, where autocast has copies of weights."""
        unseen = is_higher_order(func) or calls_operations(func)
        changed = reads | writes if unseen else writes
        if changed:  # Or its kernel finds the copies in autocast's cache.
            self._copies.before_writing(changed)
        if func is CAST:
            self._copies.empty_used()
        copies = self._copies.fill((*args, *kwargs.values()))
        if not copies:
            return self._run_leased(func, args, kwargs, reads, writes)
        try:
            return self._run_leased(func, args, kwargs, reads, writes)
        finally:
            views = only_views(func)
            self._copies.end_use(copies, read=not views, changed=writes_arguments(func))

    def _run_leased(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: Set[int],
        writes: Set[int],
    ) -> Any:
        if not reads and not writes:
            if self._began_ns:
                self._end_sample()
            return run(func, args, kwargs)
        if self._ledger.streams is not None:
            self._ledger.streams.see_operation(func)
        places = _places(frozenset(reads - writes)), _places(frozenset(writes))
        if self._began_ns:
            self._end_sample()
        self._ledger.begin_use(*places)
        try:
            result = run(func, args, kwargs)
        finally:
            self._ledger.end_use(*places)
        if func is CAST:
            self._copies.note(args[0], result)
        return result

    def _end_sample(self) -> None:
        # The rest is the operation itself, waits for leases, and ending these.
        self._costs.end_sample(self._began_ns)
        self._began_ns = 0

    def _too_many(self, func: Any, places: set[int]) -> ResourceExhausted:
        chunk_mib = self._addresses.chunk_bytes >> 20
        return ResourceExhausted(
            f"{name_of(func)} touches {len(places)} chunks of {chunk_mib} MiB at once, and this "
            f"session may lease {self._ledger.budget}; enlarge the device pool (--device-pool) or "
            "use smaller chunks (--chunk-size)"
        )
