"""Moves parameters together that lie in nearly empty chunks.

A chunk is freed when nothing in it is live. Where weights were replaced after a model was made (by
quantized ones, by merged adapters), each norm and bias that lay between them keeps a whole chunk,
which takes room and is written when it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memtide._capi.client import Kind
from memtide._memory.adoption import adopt, is_alone, restore
from memtide._memory.managed_memory import ManagedMemory

# At this share and below, a move frees at least three chunks of four.
_MOST_LIVE = 0.25
_FEWEST_CHUNKS = 2


class Compaction:
    """The chunks of one client's parameters, and of what modules hold beside them."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._memory = memory
        self._tried: dict[int, int] = {}  # The chunks of each arena after the last try, by its row.

    def is_due(self, rows: Iterable[int]) -> bool:
        """Whether little of the chunks of a row is live, and another number than at the last
        try."""
        arenas = ((row, self._memory.arenas.of(Kind.PARAMETER, row)) for row in rows)
        chunk_bytes = self._memory.addresses.chunk_bytes
        return any(
            arena.chunks >= _FEWEST_CHUNKS
            and arena.live_bytes <= _MOST_LIVE * arena.chunks * chunk_bytes
            and self._tried.get(row) != arena.chunks
            for row, arena in arenas
        )

    def move_together(self, tensors: Iterable[torch.Tensor], row: int) -> None:
        """Moves those of the tensors that lie in nearly empty chunks of this row. A tensor stays
        that shares its storage with others. REQUIRES: no tensor is in use."""
        memory = self._memory
        if memory.ledger.holding:
            return  # All chunks are leased, so that none can be freed.
        arena = memory.arenas.of(Kind.PARAMETER, row)
        with arena.emptying(_MOST_LIVE) as places:
            left = []  # Their storages live on, so that no tensor comes to lie there again.
            for tensor in tensors if len(places) >= _FEWEST_CHUNKS else ():
                if (
                    memory.addresses.manages(tensor)
                    and places.issuperset(memory.addresses.span_places(tensor))
                    and is_alone(tensor)
                ):
                    left.append(tensor.untyped_storage())
                    restore(memory, tensor)
                    adopt(memory, tensor, Kind.PARAMETER, row)
            left.clear()
        self._tried[row] = arena.chunks
