"""Arenas of activations: chunks stay from iteration to iteration, and their content does not.

Saved tensors die in backward, and the next iteration saves as many again. So the arena keeps its
chunks, and takes them in the same order each time, the lowest first: the access predictor knows
them, and brings them back ahead of backward. A chunk all of whose spans have died is *dead*: its
content is discarded, several chunks in one call, so that it is neither written back nor fetched.
Chunks that an iteration did not need are freed at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from memtide._capi.client import Home, Kind, Places
from memtide._memory.arena import Arena, Storages
from memtide.errors import FailedPrecondition, ResourceExhausted

# Dead chunks are discarded when one in this many of those that hold something is dead: so few that
# most of their memory is free for others soon, and so many that a call is worth it.
_DEAD_PART = 8


class ActivationArena(Arena):
    """The spans of activations whose chunks have one home tier."""

    def __init__(
        self,
        storages: Storages,
        home: Home,
        make_room: Callable[[Arena], None] = lambda _: None,
    ) -> None:
        """`make_room`: as for Arena."""
        super().__init__(storages, Kind.ACTIVATION, home, make_room)
        self._spans: Counter[int] = Counter()  # Live ones, by place.
        self._dead: set[int] = set()
        self._used: set[int] = set()  # In this iteration.
        self._is_full = False  # The pool has refused a chunk in this iteration.

    def discard_dead(self) -> None:
        """Discards the chunks whose spans have all died, once they are many."""
        with self._lock:
            self._work_off_returned()
            if len(self._dead) * _DEAD_PART > len(self._dead) + len(self._spans):
                self._discard()

    def trim(self) -> int:
        """Discards all dead chunks. Frees none: `end_iteration` does."""
        with self._lock:
            self._work_off_returned()
            self._discard()
            return 0

    def end_iteration(self) -> None:
        """Discards all dead chunks, and frees those that the iteration has not used."""
        with self._lock:
            self.trim()
            self._free_chunks(self.places.difference(self._used, self._dead, self._spans))
            self._used = set(self._spans)
            self._is_full = False

    def close(self) -> None:
        """Frees all chunks without a live span."""
        with self._lock:
            self.trim()
            self._free_chunks(self.places.difference(self._dead, self._spans))

    def _took(self, start: int, size: int) -> None:
        # Dead content that is left would be brought back for the first write.
        places = self._places(start, size)
        if not self._dead.isdisjoint(places):
            self._discard()
        self._dead.difference_update(places)
        self._spans.update(places)
        self._used.update(places)

    def _gave_back(self, start: int, size: int) -> None:
        for place in self._places(start, size):
            self._spans[place] -= 1
            if not self._spans[place]:
                del self._spans[place]
                self._dead.add(place)

    def _discard(self) -> None:
        if not self._dead:
            return
        try:
            self._client.discard(Places(self._dead))
        except FailedPrecondition:  # One is in use, as all are in a hold. A later call takes it.
            return
        self._dead.clear()

    def _free_chunks(self, places: set[int]) -> None:
        for place in sorted(places):
            try:
                self._client.free(place, 1)
            except FailedPrecondition:  # It is leased now; a later end of an iteration frees it.
                continue
            start = self._base + place * self._chunk_bytes
            self._free.remove(start, start + self._chunk_bytes)
            self.places.discard(place)

    def _add_chunks(self, count: int) -> int:
        if self._is_full:
            raise ResourceExhausted("the pool had no more chunks for activations in this iteration")
        try:
            return super()._add_chunks(count)
        except ResourceExhausted:
            self._is_full = True
            raise

    def _places(self, start: int, size: int) -> range:
        first = (start - self._base) // self._chunk_bytes
        return range(first, (start + size - 1 - self._base) // self._chunk_bytes + 1)
