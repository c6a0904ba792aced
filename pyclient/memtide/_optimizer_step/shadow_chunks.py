"""Shadow chunks: the chunks in which a step creates the new content of others.

Shadow chunks of one kind are interchangeable. After a commit they hold nothing and use no memory,
and each is free to become the shadow chunk of any other chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from memtide._capi.client import Client, Kind
from memtide.errors import MemtideError, ResourceExhausted


class ShadowChunks:
    """The shadow chunks of one client. Used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._places: dict[Kind, list[int]] = {}

    def of(self, kinds: dict[int, Kind]) -> dict[int, int]:
        """A shadow chunk for each place of `kinds`, as the place of each. ResourceExhausted: there
        are too few chunks; all shadow chunks are then freed."""
        shadows: dict[int, int] = {}
        for kind in set(kinds.values()):
            wanted = sorted(place for place, its_kind in kinds.items() if its_kind is kind)
            free_places = self._places.setdefault(kind, [])
            try:
                if len(free_places) < len(wanted):
                    missing = len(wanted) - len(free_places)
                    first = self._client.allocate(kind, missing)
                    free_places += range(first, first + missing)
            except ResourceExhausted:
                self.free()
                raise
            shadows.update(zip(wanted, free_places, strict=False))
        return shadows

    def release_ownership(self, shadows: dict[int, int]) -> None:
        """Forgets these shadow chunks, which from now on are the caller's to free."""
        gone = set(shadows.values())
        for kind, places in self._places.items():
            self._places[kind] = [place for place in places if place not in gone]

    def free(self) -> None:
        """Frees all shadow chunks with their content."""
        for places in self._places.values():
            for first, count in _runs(places):
                # Fails only when the session is lost, and its chunks with it.
                with contextlib.suppress(MemtideError):
                    self._client.free(first, count)
        self._places.clear()


def _runs(places: Iterable[int]) -> list[tuple[int, int]]:
    """The (first, count) of each run of consecutive places."""
    runs: list[tuple[int, int]] = []
    for place in sorted(places):
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs
