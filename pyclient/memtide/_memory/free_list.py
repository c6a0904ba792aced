"""The free bytes of an arena's chunks. Used by one thread at a time."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class FreeList:
    """Free intervals [start, end): sorted, disjoint, never adjacent."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

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

    def take(self, size: int, alignment: int = 1) -> int | None:
        """Removes `size` bytes that begin at a multiple of `alignment` from the first interval that
        has them, and returns their start; None: no interval has."""
        for at, end in enumerate(self._ends):
            start = _round_up(self._starts[at], alignment)
            if end - start >= size:
                self.remove(start, start + size)
                return start
        return None

    def take_at(self, start: int, end: int) -> bool:
        """Removes [start, end) if all of it is free, and returns whether it is."""
        at = bisect.bisect_right(self._starts, start) - 1
        if at < 0 or self._ends[at] < end:
            return False
        self.remove(start, end)
        return True

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

    def ending_at(self, end: int, alignment: int = 1) -> int:
        """The bytes from the first multiple of `alignment` in the interval that ends at `end`; 0:
        none does."""
        at = bisect.bisect_left(self._ends, end)
        if at < len(self._ends) and self._ends[at] == end:
            return max(0, end - _round_up(self._starts[at], alignment))
        return 0


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
