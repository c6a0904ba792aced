"""Who holds which chunk: leases as tokens that cannot leak.

Where touches are answered (host memory), leases only make access fast: a touch without one is a
page fault that the native library turns into a lease. So a request that finds no room is no error;
it returns None. Where they are not (a GPU), the ledger is strict: `using` is what every operation
on chunks goes through, and it finds room or raises.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from memtide._native import Access, Client, Places
from memtide.errors import OutOfRoom


class Lease:
    """One use of some chunks, until `release`."""

    __slots__ = ("_ledger", "access", "places")

    def __init__(self, ledger: Ledger, places: Places, access: Access) -> None:
        self._ledger = ledger
        self.places = places
        self.access = access

    def release(self) -> None:
        """Ends the use. Harmless when called again."""
        self._ledger.give_back(self)


class Ledger:
    """All leases of this process. Safe to use from any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.RLock()
        self._leasing = threading.Lock()
        self._live: dict[int, Lease] = {}
        self._in_use = 0
        self.budget = client.properties.lease_budget
        self.limit = limit_of(self.budget)
        # Whether what is not leased must not be touched.
        self.strict = not client.properties.touches
        # False while every chunk there is can be held at once: then nothing needs leasing.
        self.active = self.strict
        # Whether a net (net.py) leases for each operation as it is.
        self.netted = False

    def refresh(self) -> None:
        """The job's share may have changed."""
        budget = self._client.stats().lease_budget
        if budget == self.budget:
            return
        self.budget = budget
        self.limit = limit_of(budget)

    def leave(self, chunks: int) -> bool:
        """From now on, leases ahead leave room for so many chunks of somebody else. False: at this
        moment they do not, or less than half of the budget would be left to them."""
        limit = self.budget - chunks
        if limit < max(1, self.budget // 2) or self._in_use > limit:
            return False
        self.limit = min(self.limit, limit)
        return True

    @property
    def room(self) -> int:
        """Chunks that may still be leased at this moment."""
        return self.limit - self._in_use

    def lease(self, places: Places, access: Access) -> Lease | None:
        """Leases all of `places`, or None where they do not fit beside what is in use."""
        return self.lease_also(places, access) if self.active else None

    def lease_also(self, places: Places, access: Access) -> Lease | None:
        """As `lease`, also while nothing needs leasing to be fast."""
        return self._register(places, access) if self._acquire(places, access) else None

    def lease_each(self, places: Places, access: Access) -> list[Lease]:
        """As `lease`, in one call, but each place can be released apart. Empty: no room."""
        if not self.active or not self._acquire(places, access):
            return []
        return [self._register(Places([place]), access) for place in places.numbers]

    @contextlib.contextmanager
    def using(self, reads: Places, writes: Places) -> Iterator[None]:
        """While one operation works on these places. OutOfRoom (strict only): more than can be
        leased at once."""
        if not self.strict:
            tokens = [self.lease(writes, Access.WRITE), self.lease(reads, Access.READ)]
            try:
                yield
            finally:
                for token in tokens:
                    if token is not None:
                        token.release()
            return
        with contextlib.ExitStack() as held:
            self._lease_both(reads, writes, held)
            yield

    def _lease_both(self, reads: Places, writes: Places, held: contextlib.ExitStack) -> None:
        # In two calls: two operations half-way could wait for each other.
        count = reads.count + writes.count
        if count > self.budget:
            raise OutOfRoom(f"{count} chunks at once, of at most {self.budget}")
        with self._leasing:
            if count > self.budget - self._in_use:
                self.release_all()  # They were to make things fast.
            for places, access in ((writes, Access.WRITE), (reads, Access.READ)):
                if places.count:
                    self._client.acquire(places, access)
                    held.callback(self._client.release, places)

    def _acquire(self, places: Places, access: Access) -> bool:
        if not places.count or places.count > self.room:
            return False
        try:
            self._client.acquire(places, access)
        except OutOfRoom:
            return False
        return True

    def _register(self, places: Places, access: Access) -> Lease:
        token = Lease(self, places, access)
        with self._lock:
            self._live[id(token)] = token
            self._in_use += places.count
        return token

    def give_back(self, token: Lease) -> None:
        """What Lease.release does."""
        with self._lock:
            if self._live.pop(id(token), None) is None:
                return
            self._in_use -= token.places.count
        self._client.release(token.places)

    def release_all(self) -> None:
        """Ends every use: called where no computation of ours can be under way."""
        with self._lock:
            tokens = list(self._live.values())
        for token in tokens:
            token.release()


def limit_of(budget: int) -> int:
    """Chunks of a budget that may be leased ahead of their use."""
    # Page faults need leases too, two at least for code that walks over two tensors at once.
    return max(1, budget - max(2, budget // 4))


def slots_of(budget: int) -> int:
    """The least slots of which that many may be leased: a quarter is not (daemon/engine/job.h)."""
    return max(budget + 1, (4 * budget - 1) // 3)


class Window:
    """Leases of a computation that walks over chunks: the latest stay, the oldest go.

    One thread at a time. `close` ends all.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: dict[int, Lease] = {}
        self._order: deque[int] = deque()

    def holds(self, reads: set[int], writes: set[int]) -> bool:
        """Whether these places are leased already."""
        return not any(self._missing(reads, writes))

    def need(self, reads: set[int], writes: set[int]) -> None:
        """Leases the places that an operation touches, if they fit.

        An operation over more than fits (a fused step names every tensor at once) walks over its
        tensors and needs a few chunks at a time: a part leased for all of it would only take the
        room in which its page faults are answered. So then nothing is leased.
        """
        held = self._held
        reads_missing, writes_missing = self._missing(reads, writes)
        if not writes_missing and not reads_missing:
            return
        for place in writes_missing & held.keys():  # Held for reading, wanted for writing.
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
        """Gives everything back."""
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
