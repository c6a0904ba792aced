"""The leases of this process, as tokens that are counted in a ledger.

In host memory an access without a lease is a page fault, which the native library answers with a
lease. There, leases ahead of an access only make it fast, so a request that finds no room returns
None. On a GPU there are no page faults, and the ledger is strict: every operation on chunks goes
through `using`, which finds room or raises.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from memtide._capi.client import Access, Client, Places
from memtide.errors import ResourceExhausted


class Lease:
    """The right to use some places, until `release`."""

    __slots__ = ("_ledger", "access", "places")

    def __init__(self, ledger: LeaseLedger, places: Places, access: Access) -> None:
        self._ledger = ledger
        self.places = places
        self.access = access

    def release(self) -> None:
        """Ends the lease. A second call changes nothing."""
        self._ledger.give_back(self)


class KeptLeases:
    """Leases that one operation needs beyond its call, until `release`."""

    def __init__(self, leases: contextlib.ExitStack) -> None:
        self._leases = leases

    def release(self) -> None:
        """Ends them. A second call changes nothing."""
        self._leases.close()


class LeaseLedger:
    """All leases of this process. Safe to use from any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.RLock()
        self._leasing = threading.Lock()
        self._live: dict[int, Lease] = {}
        self._in_use = 0
        self._kept_uses: Counter[int] = Counter()  # Kept leases of each place. Only if strict.
        # Ends kept leases; False: there are none that it can end. Called with `_leasing` locked.
        self.make_room: Callable[[], bool] = lambda: False
        stats = client.stats()
        self.budget = stats.lease_budget
        self.limit = limit_of(self.budget)
        # The job's slots at the tier of the leases.
        self.slots = stats.slots
        # Whether an access without a lease is fatal: on a GPU.
        self.strict = not client.properties.handles_faults
        # False while all chunks can be leased at once: page faults lease each once, and there is
        # nothing to lease ahead.
        self.active = self.strict
        # Whether lease dispatch (_torch_hooks/lease_dispatch.py) leases for each operation anyway.
        self.under_dispatch = False

    def refresh(self) -> None:
        """Reads the lease budget and the slots again, because the job's share may have changed."""
        stats = self._client.stats()
        self.slots = stats.slots
        if stats.lease_budget == self.budget:
            return
        self.budget = stats.lease_budget
        self.limit = limit_of(self.budget)

    def leave(self, chunks: int) -> bool:
        """Lowers the limit of leases ahead of use, so that `chunks` of the budget stay free for
        step parts. False: more is leased now, or less than half of the budget would be left."""
        limit = self.budget - chunks
        if limit < max(1, self.budget // 2) or self._in_use > limit:
            return False
        self.limit = min(self.limit, limit)
        return True

    @property
    def room(self) -> int:
        """The chunks that may still be leased now."""
        return self.limit - self._in_use - len(self._kept_uses)

    def lease(self, places: Places, access: Access) -> Lease | None:
        """Leases all of `places`; None: they do not fit beside the other leases, or no lease is
        needed."""
        return self.lease_also(places, access) if self.active else None

    def lease_also(self, places: Places, access: Access) -> Lease | None:
        """As `lease`, but also while the ledger is not active."""
        return self._register(places, access) if self._acquire(places, access) else None

    def lease_each(self, places: Places, access: Access) -> list[Lease]:
        """As `lease`, in one call, but with a lease for each place. Empty: no room."""
        if not self.active or not self._acquire(places, access):
            return []
        return [self._register(Places([place]), access) for place in places.numbers]

    @contextlib.contextmanager
    def using(self, reads: Places, writes: Places) -> Iterator[None]:
        """Leases these places while one operation runs. ResourceExhausted (strict only): they are
        more than can be leased at once."""
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

    def keep(self, reads: Places, writes: Places) -> KeptLeases:
        """As `using`, until what is returned is released. REQUIRES: strict."""
        places = {*reads.numbers, *writes.numbers}
        with contextlib.ExitStack() as leases:
            self._lease_both(reads, writes, leases)
            with self._lock:
                self._kept_uses.update(places)
            leases.callback(self._end_kept, places)
            return KeptLeases(leases.pop_all())

    def _end_kept(self, places: set[int]) -> None:
        with self._lock:
            self._kept_uses.subtract(places)
            self._kept_uses = +self._kept_uses  # Without the places that none is left of.

    def _lease_both(self, reads: Places, writes: Places, held: contextlib.ExitStack) -> None:
        # Writes and reads are two calls. One operation at a time makes them, because two that have
        # made the first could wait for each other.
        count = reads.count + writes.count
        if count > self.budget:
            raise ResourceExhausted(f"{count} chunks at once, of at most {self.budget}")
        with self._leasing:
            if self._kept_uses:
                self._make_room_for({*reads.numbers, *writes.numbers})
            if count > self.budget - self._in_use - len(self._kept_uses):
                self.release_all()  # Leases ahead only make access fast.
            for places, access in ((writes, Access.WRITE), (reads, Access.READ)):
                if places.count:
                    self._client.acquire(places, access)
                    held.callback(self._client.release, places)

    def _make_room_for(self, places: set[int]) -> None:
        """Ends kept leases of other places until these fit beside the rest."""
        while len(places | self._kept_uses.keys()) > self.budget:
            if not self.make_room():
                others = len(self._kept_uses.keys() - places)
                raise ResourceExhausted(
                    f"{len(places)} chunks at once, beside {others} that sends and receives use "
                    f"until they end, of at most {self.budget}"
                )

    def _acquire(self, places: Places, access: Access) -> bool:
        if not places.count or places.count > self.room:
            return False
        try:
            self._client.acquire(places, access)
        except ResourceExhausted:
            return False
        return True

    def _register(self, places: Places, access: Access) -> Lease:
        token = Lease(self, places, access)
        with self._lock:
            self._live[id(token)] = token
            self._in_use += places.count
        return token

    def give_back(self, token: Lease) -> None:
        """Ends a lease; called by Lease.release."""
        with self._lock:
            if self._live.pop(id(token), None) is None:
                return
            self._in_use -= token.places.count
        self._client.release(token.places)

    def release_all(self) -> None:
        """Ends every lease. Called where no computation of this process relies on one: a strict
        ledger's operations have those of `using`, which stay."""
        with self._lock:
            tokens = list(self._live.values())
        for token in tokens:
            token.release()


def limit_of(budget: int) -> int:
    """The chunks of a lease budget that may be leased ahead of their use."""
    # The rest is for page faults: at least two, for code that walks over two tensors at once.
    return max(1, budget - max(2, budget // 4))
