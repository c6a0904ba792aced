"""Chunks that take the new content of others.

Twins of one kind are interchangeable: after a publish each holds nothing, costs nothing and is
free for the next chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from memtide._native import Client, Kind
from memtide.errors import MemtideError, OutOfRoom


class Twins:
    """The spare chunks of one client. One thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._places: dict[Kind, list[int]] = {}

    def of(self, kinds: dict[int, Kind]) -> dict[int, int]:
        """A twin for each place of the given kinds. OutOfRoom: there are not so many chunks; those
        that there were are freed."""
        twins: dict[int, int] = {}
        for kind in set(kinds.values()):
            wanted = sorted(place for place, its_kind in kinds.items() if its_kind is kind)
            mine = self._places.setdefault(kind, [])
            try:
                if len(mine) < len(wanted):
                    missing = len(wanted) - len(mine)
                    first = self._client.allocate(kind, missing)
                    mine += range(first, first + missing)
            except OutOfRoom:
                self.free()
                raise
            twins.update(zip(wanted, mine, strict=False))
        return twins

    def give_away(self, twins: dict[int, int]) -> None:
        """Twins, by place, that another is to free."""
        gone = set(twins.values())
        for kind, places in self._places.items():
            self._places[kind] = [place for place in places if place not in gone]

    def free(self) -> None:
        """Ends all twins, with whatever is in them."""
        for places in self._places.values():
            for first, count in _runs(places):
                with contextlib.suppress(MemtideError):  # Told when a session is gone anyway.
                    self._client.free(first, count)
        self._places.clear()


def _runs(places: Iterable[int]) -> list[tuple[int, int]]:
    """First and count of each run of consecutive places."""
    runs: list[tuple[int, int]] = []
    for place in sorted(places):
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs
