"""Tensors in chunks.

An `Arena` gives out spans of consecutive addresses in chunks of one kind, packed in the order of
the asking, 64-byte aligned as torch's own allocator does. A tensor larger than a chunk lies over
consecutive places. A span belongs to the storage over it: when the last tensor, view or storage
over it is gone, and not earlier, it is free again. So no two live tensors ever share bytes,
whatever a script keeps hold of.

Threads: an arena may be used from any thread. Storages end at any moment, in any thread, also
inside an arena's own call; the client notes that, and the next call works off what it noted.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.utils.dlpack import from_dlpack

from memtide._native import Client, Kind, device_name
from memtide.errors import FailedPrecondition, OutOfRoom
from memtide.packing import aligned


class Intervals:
    """Free intervals [start, end): sorted, disjoint, never adjacent."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def total(self) -> int:
        """Bytes in all intervals together."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Adds [start, end). REQUIRES: it overlaps no interval."""
        at = bisect.bisect_left(self._starts, start)
        after = at < len(self._starts) and self._starts[at] == end
        before = at > 0 and self._ends[at - 1] == start
        if before and after:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif before:
            self._ends[at - 1] = end
        elif after:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def take(self, size: int) -> int | None:
        """Cuts `size` bytes off the first interval that has them; None: none has."""
        for at, start in enumerate(self._starts):
            if self._ends[at] - start >= size:
                self.remove(start, start + size)
                return start
        return None

    def remove(self, start: int, end: int) -> None:
        """Removes [start, end). REQUIRES: it lies within one interval."""
        at = bisect.bisect_right(self._starts, start) - 1
        old_start, old_end = self._starts[at], self._ends[at]
        del self._starts[at], self._ends[at]
        if end < old_end:
            self._starts.insert(at, end)
            self._ends.insert(at, old_end)
        if old_start < start:
            self._starts.insert(at, old_start)
            self._ends.insert(at, start)

    def ending_at(self, end: int) -> int:
        """Bytes of the interval that ends at `end`; 0: none does."""
        at = bisect.bisect_left(self._ends, end)
        if at < len(self._ends) and self._ends[at] == end:
            return end - self._starts[at]
        return 0


class Storages:
    """Storages over spans of one client's range, and which arena each of them goes back to."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.device = torch.device(device_name(client.properties.dl_device))
        self._arenas: dict[int, tuple[int, deque[tuple[int, int]]]] = {}
        self._looked_at: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()  # A checkpoint's thread looks while others train.

    def over(
        self, start: int, size_bytes: int, returned: deque[tuple[int, int]]
    ) -> torch.UntypedStorage:
        """A storage over [start, start + size_bytes), which is put to `returned` after its end."""
        self._arenas[start] = size_bytes, returned
        return from_dlpack(self.client.wrap(start, size_bytes)).untyped_storage()

    def beside(self, start: int, size_bytes: int) -> torch.UntypedStorage:
        """A storage over bytes that belong to another one, or to none; its end changes nothing."""
        storage = from_dlpack(self.client.wrap(start, size_bytes)).untyped_storage()
        with self._lock:
            self._looked_at[start, size_bytes] += 1
        return storage

    def collect(self) -> None:
        """Puts spans whose storages have ended to where they belong."""
        with self._lock:
            for span in self.client.take_returned():
                # Of an arena's storage and those beside it over the same bytes, the last counts.
                if span not in self._looked_at:
                    self._arenas.pop(span[0])[1].append(span)
                elif self._looked_at[span] == 1:
                    del self._looked_at[span]
                else:
                    self._looked_at[span] -= 1

    def live(self) -> list[tuple[int, int]]:
        """From and to before of every span that a storage is over, in their order."""
        self.collect()
        return sorted((start, start + size) for start, (size, _) in list(self._arenas.items()))


class Arena:
    """The spans of one kind of chunk.

    `expected_bytes`: what it is expected to hold in all. Chunks for as much are allocated together,
    if there are so many, so that they follow each other: a chunk costs nothing until it is used.
    """

    def __init__(self, storages: Storages, kind: Kind, expected_bytes: int = 0) -> None:
        self.kind = kind
        self.expected_bytes = expected_bytes
        self.chunks = 0
        self.live_spans = 0
        self.live_bytes = 0
        self._most_bytes = 0  # That were live at once.
        self._storages = storages
        self._client = storages.client
        self._base = self._client.properties.base
        self._chunk_bytes = self._client.properties.chunk_bytes
        self._free = Intervals()
        self._last_end = 0
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over a span of its own; its content is whatever is there.

        REQUIRES: size and stride describe at least one element. OutOfRoom: no chunk is left.
        """
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        return self._over(self.empty_storage((last + 1) * dtype.itemsize), size, stride, dtype)

    def like_storage_of(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor with the layout of `source` over a span as large as the storage of `source`."""
        storage = self.empty_storage(source.untyped_storage().nbytes())
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

    def empty_storage(self, size_bytes: int) -> torch.UntypedStorage:
        """A storage over a span of its own."""
        start = self._take(aligned(size_bytes))
        return self._storages.over(start, size_bytes, self._returned)

    def take_over(
        self, places: Iterable[int], spans: Iterable[tuple[int, int]]
    ) -> list[torch.UntypedStorage]:
        """Storages over spans, start and bytes, in allocated chunks that are this arena's from now
        on. REQUIRES: the spans lie in these chunks and share no bytes."""
        with self._lock:
            for place in places:
                start = self._base + place * self._chunk_bytes
                self._free.add(start, start + self._chunk_bytes)
                self.chunks += 1
            taken = []
            for start, size_bytes in spans:
                self._free.remove(start, start + aligned(size_bytes))
                self._count(aligned(size_bytes))
                taken.append(self._storages.over(start, size_bytes, self._returned))
            return taken

    def trim(self) -> int:
        """Frees the chunks in which nothing lives; returns how many."""
        with self._lock:
            self._work_off_returned()
            freed = 0
            for start, end in self._free:
                first = -(-(start - self._base) // self._chunk_bytes)
                last = (end - self._base) // self._chunk_bytes
                if first < last:
                    try:
                        self._client.free(first, last - first)
                    except FailedPrecondition:  # Leased at this moment; free another time.
                        continue
                    at = self._base + first * self._chunk_bytes
                    self._free.remove(at, at + (last - first) * self._chunk_bytes)
                    freed += last - first
            self.chunks -= freed
            return freed

    def renew(self) -> None:
        """Trims, and expects as much again as was live at once since the last time."""
        self.trim()
        if not self.live_bytes:
            self.expected_bytes, self._most_bytes = self._most_bytes, 0

    @property
    def has_returned(self) -> bool:
        """Whether storages have gone whose spans are not free yet."""
        self._storages.collect()
        return bool(self._returned)

    def _take(self, size: int) -> int:
        with self._lock:
            self._work_off_returned()
            start = self._free.take(size)
            if start is None:
                try:
                    start = self._take_new(size)
                except OutOfRoom:
                    start = self._take_awaited(size)
            self._count(size)
            return start

    def _count(self, size: int) -> None:
        self.live_spans += 1
        self.live_bytes += size
        self._most_bytes = max(self._most_bytes, self.live_bytes)

    def _take_new(self, size: int) -> int:
        # First as if the new chunks followed the last ones, so that tensors stay packed.
        tail = self._free.ending_at(self._last_end)
        self._grow(math.ceil((size - tail) / self._chunk_bytes))
        start = self._free.take(size)
        if start is None:
            self._grow(math.ceil(size / self._chunk_bytes))
            start = self._free.take(size)
        assert start is not None
        return start

    def _take_awaited(self, size: int) -> int:
        """A span whose last owner has work on a GPU that is not done yet. OutOfRoom: none fits."""
        if self._storages.device.type == "cuda":
            torch.cuda.synchronize(self._storages.device)
            self._work_off_returned()
            start = self._free.take(size)
            if start is not None:
                return start
        return self._take_new(size)

    def _grow(self, count: int) -> None:
        expected = math.ceil((self.expected_bytes - self.live_bytes) / self._chunk_bytes)
        if expected > count:
            try:
                self._add_chunks(expected)
            except OutOfRoom:
                self.expected_bytes = 0
            else:
                return
        self._add_chunks(count)

    def _add_chunks(self, count: int) -> None:
        place = self._client.allocate(self.kind, count)
        start = self._base + place * self._chunk_bytes
        self._last_end = start + count * self._chunk_bytes
        self._free.add(start, self._last_end)
        self.chunks += count

    def _work_off_returned(self) -> None:
        self._storages.collect()
        while self._returned:
            start, size_bytes = self._returned.popleft()
            self._free.add(start, start + aligned(size_bytes))
            self.live_spans -= 1
            self.live_bytes -= aligned(size_bytes)
