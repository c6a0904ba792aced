"""Arenas: spans of addresses in chunks, and the storages over them.

An `Arena` allocates spans of consecutive addresses in chunks of one kind. Spans are packed in the
order of allocation, unless they have a position in the layout that arenas have in common
(parallel_layout.py), and are aligned as in torch's own allocator of the device (alignment.py). A
tensor larger than a chunk lies over consecutive places. A span belongs to the storage over it, and
becomes free when the last tensor, view or storage over it is destroyed, not earlier. So no two live
tensors share bytes, whichever references a script holds.

Threads: an arena may be used from any thread. A storage may be destroyed at any moment, in any
thread, also within an arena's own call. The client only records that; the arena's next call frees
the span.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from memtide._capi.client import Client, Home, Kind
from memtide._memory.alignment import ALIGNMENT_BYTES, GPU_ALIGNMENT_BYTES, aligned
from memtide._memory.free_list import FreeList
from memtide._memory.parallel_layout import Position, Run
from memtide._util.devices import device_name, gpu_module
from memtide.errors import FailedPrecondition, NoRoom, ResourceExhausted


class _Span(NamedTuple):
    """The bytes of a live storage, and what its end returns to its arena."""

    size_bytes: int
    taken_bytes: int  # With the padding that its arena took for it.
    returned: deque[tuple[int, int]]
    before_bytes: int = 0  # The part of taken_bytes before the storage.


class Storages:
    """Storages over spans of one client's range, and the arena to which each span returns."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.device = torch.device(device_name(client.properties.dl_device))
        # Memory without page faults is a GPU's.
        faults = client.properties.handles_faults
        self.alignment_bytes = ALIGNMENT_BYTES if faults else GPU_ALIGNMENT_BYTES
        self._spans: dict[int, _Span] = {}  # By their start.
        self._looked_at: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()  # A checkpoint's thread reads while others train.

    def over(self, start: int, span: _Span) -> torch.UntypedStorage:
        """A storage over [start, start + span.size_bytes). When it is destroyed, `collect` appends
        its start and the bytes that were taken for it to `span.returned`."""
        self._spans[start] = span
        size_bytes = span.size_bytes
        return from_dlpack(self.client.wrap(start, size_bytes)).untyped_storage()

    def bytes_at(self, start: int, size_bytes: int) -> torch.Tensor:
        """A tensor of uint8 over bytes of the range, which another storage owns, or none. Its end
        frees nothing."""
        storage = from_dlpack(self.client.wrap(start, size_bytes)).untyped_storage()
        with self._lock:
            self._looked_at[start, size_bytes] += 1
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def collect(self) -> None:
        """Returns the spans of destroyed storages to their arenas."""
        with self._lock:
            for returned in self.client.take_returned():
                # The client does not say which of several storages over the same bytes has ended
                # (the arena's own, or that of `bytes_at`): the span returns to its arena with the
                # last one.
                if returned not in self._looked_at:
                    start, _ = returned
                    span = self._spans.pop(start)
                    span.returned.append((start - span.before_bytes, span.taken_bytes))
                elif self._looked_at[returned] == 1:
                    del self._looked_at[returned]
                else:
                    self._looked_at[returned] -= 1

    def live(self) -> list[tuple[int, int]]:
        """The [start, end) addresses of every span with a live storage, sorted."""
        self.collect()
        spans = list(self._spans.items())
        return sorted((start, start + span.size_bytes) for start, span in spans)


class Arena:
    """The spans in chunks of one kind.

    The chunks of a layout's run are allocated together if the pool has them: a chunk costs no
    memory until it is used.
    """

    def __init__(
        self,
        storages: Storages,
        kind: Kind,
        home: Home = Home.LOWEST,
        make_room: Callable[[Arena], None] = lambda _: None,
    ) -> None:
        """`make_room` has other arenas give up the chunks that they do not need."""
        self.kind = kind
        self.home = home
        self.places: set[int] = set()  # The chunks.
        self.live_bytes = 0
        self._most_bytes = 0  # The peak of `live_bytes` since the last `renew`.
        self.last_peak_bytes = 0  # And before.
        # The address at which the layout begins, by run; None: the pool has no room for the run.
        self._origins: dict[Run, int | None] = {}
        self._storages = storages
        self._client = storages.client
        self._base = self._client.properties.base
        self._chunk_bytes = self._client.properties.chunk_bytes
        self._alignment_bytes = storages.alignment_bytes
        self._free = FreeList()
        self._last_end = 0
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()
        self._make_room = make_room

    def empty(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        position: Position | None = None,
    ) -> torch.Tensor:
        """An uninitialized tensor over a new span, at this position if that is free.

        REQUIRES: size and stride describe at least one element. ResourceExhausted: no chunk is
        left.
        """
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        storage = self.empty_storage((last + 1) * dtype.itemsize, position)
        return self._over(storage, size, stride, dtype)

    def like_storage_of(
        self, source: torch.Tensor, position: Position | None = None
    ) -> torch.Tensor:
        """An uninitialized tensor with the layout of `source`, over a span as large as the storage
        of `source`, at this position if that is free."""
        storage = self.empty_storage(source.untyped_storage().nbytes(), position)
        return self._over(storage, source.size(), source.stride(), source.dtype)

    def _over(
        self,
        storage: torch.UntypedStorage,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        empty = torch.empty(0, dtype=dtype, device=self._storages.device)
        return empty.set_(storage, 0, size, stride)

    def empty_storage(
        self, size_bytes: int, position: Position | None = None
    ) -> torch.UntypedStorage:
        """A storage over a new span, at this position if that is free."""
        taken_bytes = aligned(size_bytes, self._alignment_bytes)
        start = self._take(taken_bytes, position)
        return self._storages.over(start, _Span(size_bytes, taken_bytes, self._returned))

    def take_over(
        self, places: Iterable[int], spans: Iterable[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """Adds allocated chunks to this arena, and returns storages over `spans`, the (start,
        bytes) pairs of what they hold. They may have less padding than this arena gives, from an
        older memtide or another device. REQUIRES: the spans lie in these chunks, begin at multiples
        of ALIGNMENT_BYTES and are disjoint."""
        with self._lock:
            for place in places:
                start = self._base + place * self._chunk_bytes
                self._free.add(start, start + self._chunk_bytes)
                self.places.add(place)
            storages = []
            for start, size_bytes in spans:
                taken_bytes = aligned(size_bytes)
                self._free.remove(start, start + taken_bytes)
                self._count(taken_bytes)
                span = _Span(size_bytes, taken_bytes, self._returned)
                storages.append(self._storages.over(start, span))
            return storages

    def take_over_whole(
        self, places: Iterable[int], spans: Sequence[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """As `take_over`, for consecutive places, and what the spans leave of the chunks is taken,
        too, as long as they live: no other tensor comes to lie there. REQUIRES: there is a span."""
        with self._lock:
            numbers = sorted(places)
            begin = self._base + numbers[0] * self._chunk_bytes
            end = self._base + (numbers[-1] + 1) * self._chunk_bytes
            self.places.update(numbers)
            self._count(end - begin)
            starts = sorted(start for start, _ in spans)
            # Each takes the bytes up to the next one, and the first also those before it.
            taken_until = dict(zip(starts, [*starts[1:], end], strict=True))
            storages = []
            for start, size_bytes in spans:
                before = start - begin if start == starts[0] else 0
                taken_bytes = taken_until[start] - start + before
                span = _Span(size_bytes, taken_bytes, self._returned, before)
                storages.append(self._storages.over(start, span))
            return storages

    def nearly_empty_places(self) -> set[int]:
        """The chunks of which live spans have a quarter at most."""
        with self._lock:
            self._work_off_returned()
            free: Counter[int] = Counter()
            for place, start, end in self._free_in_chunks():
                free[place] += end - start
            least = self._chunk_bytes * 3 // 4
            return {place for place, free_bytes in free.items() if free_bytes >= least}

    @contextlib.contextmanager
    def avoiding(self, places: set[int]) -> Iterator[None]:
        """In the block, in which no other thread uses the arena, no span is taken in these."""
        with self._lock:
            self._work_off_returned()
            avoided = [(s, e) for place, s, e in self._free_in_chunks() if place in places]
            for start, end in avoided:
                self._free.remove(start, end)
            try:
                yield
            finally:
                for start, end in avoided:
                    self._free.add(start, end)

    def _free_in_chunks(self) -> Iterator[tuple[int, int, int]]:
        """Each chunk with a free interval [start, end) in it."""
        for start, end in self._free:
            while start < end:
                place = (start - self._base) // self._chunk_bytes
                next_start = min(end, self._base + (place + 1) * self._chunk_bytes)
                yield place, start, next_start
                start = next_start

    def trim(self) -> int:
        """Frees the chunks without a live span; returns how many."""
        with self._lock:
            self._work_off_returned()
            freed = 0
            for start, end in self._free:
                first = -(-(start - self._base) // self._chunk_bytes)
                last = (end - self._base) // self._chunk_bytes
                if first < last:
                    try:
                        self._client.free(first, last - first)
                    except FailedPrecondition:  # It is leased now; a later trim frees it.
                        continue
                    at = self._base + first * self._chunk_bytes
                    self._free.remove(at, at + (last - first) * self._chunk_bytes)
                    self.places.difference_update(range(first, last))
                    freed += last - first
            if not self.live_bytes:
                self._origins.clear()
            return freed

    def close(self) -> None:
        """Frees all chunks without a live span."""
        self.trim()

    def close_unless_busy(self) -> None:
        """As `close`, unless another thread uses the arena, which may wait for the caller's."""
        if self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def renew(self) -> None:
        """Trims. If no span is live then, the peak of live bytes begins again."""
        self.trim()
        if not self.live_bytes:
            self.last_peak_bytes, self._most_bytes = self._most_bytes, 0

    @property
    def chunks(self) -> int:
        """How many chunks the arena has."""
        return len(self.places)

    @property
    def peak_bytes(self) -> int:
        """The most bytes of live spans since the last `renew`, or before it."""
        return max(self._most_bytes, self.last_peak_bytes)

    @property
    def has_returned(self) -> bool:
        """Whether storages were destroyed whose spans are not free yet."""
        self._storages.collect()
        return bool(self._returned)

    def _take(self, size: int, position: Position | None) -> int:
        with self._lock:
            self._work_off_returned()
            start = self._find_at(position, size) if position is not None else None
            if start is None:
                start = self._find(size)
            if start is None:
                with contextlib.suppress(ResourceExhausted):
                    start = self._take_new(size)
                if start is None:
                    start = self._take_awaited(size)
            self._took(start, size)
            self._count(size)
            return start

    def _find(self, size: int) -> int | None:
        return self._free.take(size, self._alignment_bytes)

    def _find_at(self, position: Position, size: int) -> int | None:
        run = position.run
        if run not in self._origins:
            self._origins[run] = None
            with contextlib.suppress(ResourceExhausted):
                first = self._add_chunks(math.ceil((run.end - run.start) / self._chunk_bytes))
                self._origins[run] = first - run.start
        origin = self._origins[run]
        if origin is None:
            return None
        start = origin + position.offset
        return start if self._free.take_at(start, start + size) else None

    def _took(self, start: int, size: int) -> None:
        """A span begins. `_gave_back`: it has ended."""

    def _gave_back(self, start: int, size: int) -> None:
        pass

    def _count(self, size: int) -> None:
        self.live_bytes += size
        self._most_bytes = max(self._most_bytes, self.live_bytes)

    def _take_new(self, size: int) -> int:
        # First allocates only what is missing behind the last chunk: if the new chunks follow it,
        # the tensor begins in that chunk's free tail, and tensors stay packed.
        tail = self._free.ending_at(self._last_end, self._alignment_bytes)
        self._add_chunks(math.ceil((size - tail) / self._chunk_bytes))
        start = self._find(size)
        if start is None:
            self._add_chunks(math.ceil(size / self._chunk_bytes))
            start = self._find(size)
        assert start is not None
        return start

    def _take_awaited(self, size: int) -> int:
        """As `_take_new`, but first waits for the GPU: a span becomes free only when the kernels
        that use it are done. Then other arenas give up what they keep for later, such as the chunks
        of parameters that have got another data type. NoRoom: no span fits."""
        device = self._storages.device
        if (gpu := gpu_module(device.type)) is not None:
            gpu.synchronize(device)
            self._work_off_returned()
            start = self._find(size)
            if start is not None:
                return start
        with contextlib.suppress(ResourceExhausted):
            return self._take_new(size)
        self._make_room(self)
        try:
            return self._take_new(size)
        except ResourceExhausted as error:
            raise NoRoom(str(error)) from None

    def _add_chunks(self, count: int) -> int:
        place = self._client.allocate(self.kind, count, self.home)
        start = self._base + place * self._chunk_bytes
        self._last_end = start + count * self._chunk_bytes
        self._free.add(start, self._last_end)
        self.places.update(range(place, place + count))
        return start

    def _work_off_returned(self) -> None:
        self._storages.collect()
        while self._returned:
            start, taken_bytes = self._returned.popleft()
            self._free.add(start, start + taken_bytes)
            self._gave_back(start, taken_bytes)
            self.live_bytes -= taken_bytes
