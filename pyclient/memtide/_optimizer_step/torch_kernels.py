"""Computes step parts in this process, with torch's own functions (torch_tiles.py).

A part has its chunks in the daemon's host memory while it is computed. Several parts are computed
at a time, by the threads of `StepCalls`, while the script's thread goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from memtide._capi.client import Client
from memtide._optimizer_step.partition import Batch, Geometry, Interval, Part
from memtide._optimizer_step.rank_parts import RankParts
from memtide._optimizer_step.torch_tiles import Scratch, step_freely, step_in_tiles, types_of
from memtide.errors import MemtideError, ResourceExhausted


class TorchKernels:
    """Computes the batches of one client. Safe to use from any thread."""

    def __init__(
        self,
        client: Client,
        geometry: Geometry,
        ranks: RankParts | None = None,
        *,
        has_plain_bits: bool = True,
    ) -> None:
        """`ranks`: makes parts once for all ranks of a training. `has_plain_bits`: parts have the
        bits of a plain step."""
        self._ranks = ranks
        self._client = client
        self._geometry = geometry
        self._scratch = Scratch()
        # The one thread that computes where torch's threads share a part.
        self._computing = None if has_plain_bits else ThreadPoolExecutor(1, "memtide-compute")
        # Batches that do not fit would evict each other's chunks.
        self._by_turns = threading.Lock()

    def make(
        self, batch: Batch, shadows: Mapping[int, int], room: int, *, count_non_finite: bool = False
    ) -> int:
        """Computes a batch into shadow chunks (`shadows`: by place), with at most `room` chunks in
        host memory at a time: fewer where the job's share is smaller, as it changes with the needs
        of other jobs. Returns how many elements of gradients are infinite or NaN, if they are
        counted; else 0. ResourceExhausted: there is no room for one chunk, or for its content."""
        while True:
            try:
                with _unseen():
                    return self._make(batch, shadows, room, count_non_finite)
            except ResourceExhausted:
                if room == 1:
                    raise
                room //= 2

    def _make(
        self, batch: Batch, shadows: Mapping[int, int], room: int, count_non_finite: bool
    ) -> int:
        if self._ranks is not None and not count_non_finite and self._fits_ranks(batch):
            with self._ranks.lent(batch, shadows) as chunks:
                if chunks is not None:
                    self._compute(batch, _Memory(self._geometry, chunks, shadows), count=False)
            return 0
        reads = sorted(self._read(batch))
        writes = sorted(shadows[place] for place in batch.writes)
        if len(reads) + len(writes) > room:
            with self._by_turns:
                return self._make_by_turns(batch, shadows, room, count_non_finite)
        with self._lent(reads, writes, shadows) as memory:
            self._compute(batch, memory, count=count_non_finite)
        return memory.non_finite

    def _fits_ranks(self, batch: Batch) -> bool:
        """Whether a batch may be one part of several ranks, which has all chunks at a time."""
        assert self._ranks is not None
        count = len(self._read(batch)) + len(batch.writes)
        return self._ranks.can_share(batch) and count <= self._client.properties.host_slots // 2

    def _compute(self, batch: Batch, memory: _Memory, *, count: bool) -> None:
        self._copy(batch.copies, memory)
        for part in batch.parts:
            self._step(part, memory)
            memory.count(part, count)

    def _make_by_turns(
        self, batch: Batch, shadows: Mapping[int, int], room: int, count_non_finite: bool
    ) -> int:
        """As `make`, where not all chunks of a batch fit: its elements are copied to memory of this
        process, some chunks at a time, and its results from there."""
        steps = [(part, *_copies_of(part)) for part in batch.parts]
        unchanged = [
            (start, torch.empty(end - start, dtype=torch.uint8, device="cpu"))
            for start, end in batch.copies
        ]
        reads, writes = list(unchanged), list(unchanged)
        for part, gradient, old, new in steps:
            reads += [(part.gradient, gradient), *zip(_old_starts(part), old, strict=True)]
            writes += [(start, one) for (start, _), one in zip(part.written, new, strict=True)]
        for spans, places in self._groups(reads, room):
            with self._lent(places, [], shadows) as memory:
                for start, copy in spans:
                    copy.copy_(_view(memory.old(start), copy.numel(), copy.dtype))
        non_finite = 0
        for part, gradient, old, new in steps:
            if count_non_finite:
                non_finite += part.elements - int(torch.isfinite(gradient).sum())
            self._compute_part(part, gradient, old, new)
        groups = list(self._groups(writes, room))
        for number, (spans, places) in enumerate(groups, 1):
            with self._lent([], [shadows[place] for place in places], shadows) as memory:
                # Said once, with the group after which no other can find too little room.
                memory.non_finite = non_finite if number == len(groups) else 0
                for start, result in spans:
                    _view(memory.shadow(start), result.numel(), result.dtype).copy_(result)
        return non_finite

    def _groups(
        self, spans: Iterable[tuple[int, torch.Tensor]], room: int
    ) -> Iterator[tuple[list[tuple[int, torch.Tensor]], list[int]]]:
        """Divides spans, each of which lies in one chunk, into groups over at most `room` chunks,
        with the places of each group. No chunk is in two groups."""
        by_place: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for span in spans:
            by_place.setdefault(self._geometry.place(span[0]), []).append(span)
        places = sorted(by_place)
        for first in range(0, len(places), room):
            some = places[first : first + room]
            yield [span for place in some for span in by_place[place]], some

    @contextlib.contextmanager
    def _lent(
        self, reads: Sequence[int], writes: Sequence[int], shadows: Mapping[int, int]
    ) -> Iterator[_Memory]:
        """Has chunks in host memory. Unless the block raises, the written ones have new content."""
        number, addresses = self._client.start_part(reads, writes)
        memory = _Memory(
            self._geometry, dict(zip((*reads, *writes), addresses, strict=True)), shadows
        )
        try:
            yield memory
        except BaseException:
            # Fails only when the session is lost, and the part with it.
            with contextlib.suppress(MemtideError):
                self._client.end_part(number, computed=False)
            raise
        self._client.end_part(number, computed=True, non_finite=memory.non_finite)

    @staticmethod
    def _copy(intervals: Iterable[Interval], memory: _Memory) -> None:
        for start, end in intervals:
            ctypes.memmove(memory.shadow(start), memory.old(start), end - start)

    def _read(self, batch: Batch) -> set[int]:
        """The places whose content is read. States that begin with this step have none."""
        places = set(batch.reads) | {self._geometry.place(start) for start, _ in batch.copies}
        for part in batch.parts:
            places |= {self._geometry.place(start) for start in _old_starts(part)}
        return places

    def _step(self, part: Part, memory: _Memory) -> None:
        gradient_type, *types = _types_of_part(part)
        self._compute_part(
            part,
            _view(memory.old(part.gradient), part.elements, gradient_type),
            [
                _view(memory.old(start), part.elements, kind)
                for start, kind in zip(_old_starts(part), types, strict=False)
            ],
            [
                _view(memory.shadow(start), part.elements, kind)
                for (start, _), kind in zip(part.written, types, strict=True)
            ],
        )

    def _compute_part(
        self,
        part: Part,
        gradient: torch.Tensor,
        old: Sequence[torch.Tensor],
        new: Sequence[torch.Tensor],
    ) -> None:
        if self._computing is None:
            step_in_tiles(part, gradient, old, new, self._scratch)
            return

        def compute() -> None:
            with _unseen():
                step_freely(part, gradient, old, new)

        self._computing.submit(compute).result()

    def close(self) -> None:
        """Ends its thread. REQUIRES: no part is computed."""
        if self._computing is not None:
            self._computing.shutdown()


@dataclass
class _Memory:
    """Where the chunks of a part are, by their places, and what was counted in them."""

    geometry: Geometry
    chunks: Mapping[int, int]
    shadows: Mapping[int, int]
    non_finite: int = 0

    def old(self, address: int) -> int:
        """Where the present content of an address is."""
        place = self.geometry.place(address)
        return self.chunks[place] + address - self.geometry.chunk(place)[0]

    def shadow(self, address: int) -> int:
        """Where the new content of an address is written."""
        place = self.geometry.place(address)
        return self.chunks[self.shadows[place]] + address - self.geometry.chunk(place)[0]

    def count(self, part: Part, wanted: bool) -> None:
        """Adds the elements of a part's gradient that are infinite or NaN, if that is wanted."""
        if wanted:
            gradient = _view(self.old(part.gradient), part.elements, _types_of_part(part)[0])
            self.non_finite += part.elements - int(torch.isfinite(gradient).sum())


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """In the block, torch's operations record nothing for backward, and no mode of this thread sees
    them, neither lease dispatch nor one of the script's, such as its default device."""
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def _old_starts(part: Part) -> list[int]:
    """Where the tensors that a step reads begin, but for the gradient. States that begin with the
    step have no content yet; masters have."""
    starts = [start for start, _ in part.written]
    if not part.options.fresh_states:
        return starts
    return starts[: 2 if part.options.rounded_format is not None else 1]


def _types_of_part(part: Part) -> list[torch.dtype]:
    """The types of the gradient, the parameter and the states."""
    return [part.options.gradient_format, *types_of(part.options, len(part.written))]


def _copies_of(part: Part) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Memory for copies of a part: of its gradient, of what it reads and of what it writes, which
    are the same tensors as far as both have them."""
    gradient, *new = [
        torch.empty(part.elements, dtype=kind, device="cpu") for kind in _types_of_part(part)
    ]
    return gradient, new[: len(_old_starts(part))], new


def _view(address: int, elements: int, kind: torch.dtype) -> torch.Tensor:
    """A tensor over elements in host memory, which it does not keep."""
    size_bytes = elements * kind.itemsize
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype=kind)
