"""Copies of tensors whose bytes stay one until a copy or the tensor itself is written.

Chunks are duplicated as wholes: the copies lie in new chunks at the same offsets, and the daemon
keeps what a chunk and its duplicates hold once. So a duplicate that is written also gets the bytes
of other tensors that lie in its chunk, and no other tensor may lie there. Therefore consecutive
chunks are only duplicated where the tensors that are to be copied fill half of them or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from memtide._capi.client import Places
from memtide._memory.adoption import ordinary_tensors
from memtide._memory.managed_memory import ManagedMemory, memory_of
from memtide._memory.storage_copies import is_whole
from memtide.errors import Aborted, FailedPrecondition, ResourceExhausted


class Duplicates:
    """`copies` copies of each of these tensors, made at once, as far as they are in chunks that can
    be duplicated. Used by one thread, and not while an optimizer steps."""

    def __init__(self, tensors: Sequence[torch.Tensor], copies: int) -> None:
        self._left: dict[int, list[torch.Tensor]] = {}  # By the storage, of which each has one.
        by_memory: dict[ManagedMemory, dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            memory = memory_of(tensor)
            if memory is not None and _may_be_duplicated(memory, tensor):
                by_memory.setdefault(memory, {})[tensor.data_ptr()] = tensor
        for memory, by_address in by_memory.items():
            # Leases ahead of their use would be in the way.
            memory.ledger.release_all()
            for part in _in_full_chunks(memory, list(by_address.values())):
                self._duplicate(memory, part, copies)
            memory.pressure.note_chunks()

    def take(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The next copy of a tensor. None: there is none."""
        # `data_ptr` would end what torch shares between a tensor and its lazy clones.
        left = self._left.get(tensor.untyped_storage()._cdata)
        return left.pop() if left else None

    def _duplicate(self, memory: ManagedMemory, tensors: list[torch.Tensor], copies: int) -> None:
        sources = [_Source.of(memory, tensor) for tensor in tensors]
        places = sorted({place for source in sources for place in source.places})
        # All of them will be written. A copy that has no room says so now.
        if memory.arenas.chunks() + len(places) * copies > memory.client.properties.max_chunks:
            return
        at_once = memory.client.limits.chunks_per_call // len(places)
        if not at_once:
            return
        for begun in range(0, copies, at_once):
            count = min(copies - begun, at_once)
            try:
                first = memory.client.duplicate(Places(places), count)
            except (Aborted, FailedPrecondition, ResourceExhausted):
                return  # The bytes are copied, as those of other tensors are.
            for number in range(count):
                self._take_over(memory, sources, places, first + number * len(places))

    def _take_over(
        self, memory: ManagedMemory, sources: list[_Source], places: list[int], first: int
    ) -> None:
        moved = {place: first + number for number, place in enumerate(places)}
        spans = []
        for source in sources:
            place = source.places[0]
            start = source.address + (moved[place] - place) * memory.addresses.chunk_bytes
            spans.append((start, source.size_bytes))
        arena = memory.arenas.at(places[0])
        assert arena is not None
        storages = arena.take_over_whole(moved.values(), spans)
        for source, storage in zip(sources, storages, strict=True):
            with ordinary_tensors():
                empty = torch.empty(0, dtype=source.dtype, device=memory.addresses.device)
                copied = empty.set_(storage, 0, source.size, source.stride)
            self._left.setdefault(source.storage, []).append(copied)


class _Source(NamedTuple):
    """A tensor that is copied, as it is known once for all copies."""

    places: range
    storage: int
    address: int
    size_bytes: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, memory: ManagedMemory, tensor: torch.Tensor) -> _Source:
        return cls(
            memory.addresses.span_places(tensor),
            tensor.untyped_storage()._cdata,
            tensor.data_ptr(),
            tensor.untyped_storage().nbytes(),
            tensor.dtype,
            tensor.size(),
            tensor.stride(),
        )


def _may_be_duplicated(memory: ManagedMemory, tensor: torch.Tensor) -> bool:
    # With a hold, all chunks are leased, and they fit.
    in_use = memory.ledger.holding or memory.ledger.script_holds
    return not in_use and is_whole(tensor) and tensor.storage_offset() == 0


def _in_full_chunks(
    memory: ManagedMemory, tensors: list[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """The tensors that fill consecutive chunks by half or more, by arena. Parameters come first, as
    they are needed most: host memory may have no room for all."""
    by_arena: dict[int, list[tuple[range, torch.Tensor]]] = {}
    for tensor in tensors:
        places = memory.addresses.span_places(tensor)
        by_arena.setdefault(memory.arenas.number_at(places[0]), []).append((places, tensor))
    for _, spans in sorted(by_arena.items()):
        spans.sort(key=lambda each: each[1].data_ptr())
        runs: list[list[tuple[range, torch.Tensor]]] = []
        for places, tensor in spans:
            if runs and places[0] <= runs[-1][-1][0][-1] + 1:
                runs[-1].append((places, tensor))
            else:
                runs.append([(places, tensor)])
        full = [
            tensor
            for run in runs
            if 2 * sum(tensor.nbytes for _, tensor in run)
            >= (run[-1][0][-1] + 1 - run[0][0][0]) * memory.addresses.chunk_bytes
            for _, tensor in run
        ]
        if full:
            yield full
