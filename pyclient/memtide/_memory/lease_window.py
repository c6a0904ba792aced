"""Leases that follow a computation over more chunks than can be leased at once."""

from __future__ import annotations

from collections import deque

from memtide._capi.client import Access, Places
from memtide._memory.leases import Lease, LeaseLedger


class LeaseWindow:
    """The leases of a computation that walks over chunks. The oldest are released to make room.

    Used by one thread at a time. `close` releases all.
    """

    def __init__(self, ledger: LeaseLedger) -> None:
        self._ledger = ledger
        self._held: dict[int, Lease] = {}
        self._order: deque[int] = deque()

    def holds(self, reads: set[int], writes: set[int]) -> bool:
        """Whether these places are leased already."""
        return not any(self._missing(reads, writes))

    def need(self, reads: set[int], writes: set[int]) -> None:
        """Leases the places that an operation accesses, if all of them fit.

        Otherwise nothing is leased. An operation over more than fits (a fused step, which names
        every tensor at once) walks over its tensors and needs a few chunks at a time; leases of
        some of them would only take the room that its page faults need.
        """
        held = self._held
        reads_missing, writes_missing = self._missing(reads, writes)
        if not writes_missing and not reads_missing:
            return
        for place in writes_missing & held.keys():  # Read leases that must become write leases.
            held.pop(place).release()
            self._order.remove(place)
        missing = len(writes_missing) + len(reads_missing)
        self._make_room(missing, reads | writes)
        if missing > self._ledger.room:
            self.close()
            return
        self._add(writes_missing, Access.WRITE)
        self._add(reads_missing, Access.READ)

    def close(self) -> None:
        """Releases all leases."""
        for token in self._held.values():
            token.release()
        self._held.clear()
        self._order.clear()

    def _missing(self, reads: set[int], writes: set[int]) -> tuple[set[int], set[int]]:
        held = self._held
        writes_missing = {
            place for place in writes if place not in held or held[place].access is not Access.WRITE
        }
        return {p for p in reads if p not in held and p not in writes}, writes_missing

    def _make_room(self, count: int, keep: set[int]) -> None:
        for _ in range(len(self._order)):
            if self._ledger.room >= count:
                return
            place = self._order.popleft()
            if place in keep:
                self._order.append(place)
            else:
                self._held.pop(place).release()

    def _add(self, missing: set[int], access: Access) -> None:
        for token in self._ledger.lease_each(Places(missing), access):
            place = token.places.numbers[0]
            self._held[place] = token
            self._order.append(place)
