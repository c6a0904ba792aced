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
from time import perf_counter_ns

import torch

from memtide._capi.client import Access, Client, Places
from memtide._memory.covered_streams import covered_streams
from memtide.errors import MemtideError, ResourceExhausted

_NO_PLACES = Places(())


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

    def __init__(self, client: Client, make_room: Callable[[], bool] = lambda: False) -> None:
        """`make_room` ends kept leases. False: there are none that it can end. It is called with
        `_leasing` locked."""
        self._client = client
        self._lock = threading.RLock()
        self._leasing = threading.Lock()
        self._live: dict[int, Lease] = {}
        self._in_use = 0
        self._kept_uses: Counter[int] = Counter()  # Kept leases of each place.
        self._make_room = make_room
        stats = client.stats()
        self.budget = stats.lease_budget
        self.limit = limit_of(self.budget)
        # This process's part of the job's slots at the tier of the leases: ranks share a job.
        self.slots = stats.slots // client.ranks
        # Whether an access without a lease is fatal: on a GPU.
        self.strict = not client.properties.handles_faults
        # False while all chunks can be leased at once (page faults lease each once), or are held:
        # there is nothing to lease ahead.
        self.active = self.strict
        self.streams = covered_streams(client) if self.strict else None
        # Whether lease dispatch (_torch_hooks/on_gpu/lease_dispatch.py) leases for each operation.
        self.under_dispatch = False
        self.waited_ns = 0  # For the leases of `using`.
        self.script_holds = 0  # Blocks of memtide.hold. Not the hold below.
        self.holding = False  # Whether there is a hold.
        self.held_chunks = 0
        self._held: list[Places] = []
        self._hold_lock = threading.Lock()  # Holds are extended in threads of backward, too.

    def refresh(self) -> None:
        """Reads the lease budget and the slots again, because the job's share may have changed."""
        stats = self._client.stats()
        self.slots = stats.slots // self._client.ranks
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

    def hold(self, places: set[int]) -> bool:
        """Begins the hold: a write lease on each of `places`, which `release_all` does not end.
        False: they do not fit. REQUIRES: there is no hold.

        The lease is for writing because no operation says any more what it writes. So every chunk
        becomes dirty, which costs a write-back once it is evicted; while all chunks fit, none is.
        """
        with self._hold_lock:
            assert not self.holding
            self.holding = self._hold_more(places)
            if self.holding:
                self._use_any_stream()
            return self.holding

    def extend_hold(self, places: set[int]) -> bool:
        """Extends the hold to all of `places`, if there is one. False: they do not fit, and the
        hold is as it was. REQUIRES: the hold has no other places."""
        with self._hold_lock:
            return not self.holding or self._hold_more(places)

    def end_hold(self) -> None:
        """Ends the hold, if there is one."""
        with self._hold_lock:
            self.holding, self.held_chunks = False, 0
            while self._held:
                self._client.release(self._held.pop())

    def _hold_more(self, places: set[int]) -> bool:
        if len(places) > self.budget:
            return False
        missing = Places(places.difference(*(held.numbers for held in self._held)))
        if missing.count:
            try:
                self._client.acquire(missing, Access.WRITE)
            except MemtideError:  # If a chunk is lost, only an operation that uses it is to fail.
                return False
            self._held.append(missing)
            self.held_chunks += missing.count
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
        began_ns = perf_counter_ns()
        self.begin_use(reads, writes)
        self.waited_ns += perf_counter_ns() - began_ns
        try:
            yield
        finally:
            self.end_use(reads, writes)

    def copying(
        self, places: Places, *, writing: bool, by_torch: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Leases these places for one copy, by torch or past it."""
        # Lease dispatch leases for torch's operations under it, and under a hold all chunks are.
        dispatched = self.under_dispatch and torch._C._len_torch_dispatch_stack()
        if (by_torch and dispatched) or self.holding:
            return contextlib.nullcontext()
        return self.using(*((_NO_PLACES, places) if writing else (places, _NO_PLACES)))

    def _use_any_stream(self) -> None:
        if self.streams is not None:
            self.streams.cover_all()

    def can_keep(self, places: set[int]) -> bool:
        """Whether these can be leased together, beside what `keep` has leased and cannot end."""
        if not self.strict:
            return len(places) + self.kept_beside(places) <= self.limit
        with self._leasing:
            while len(places) + self.kept_beside(places) > self.budget:
                if not self._make_room():
                    return False
        return True

    def kept_beside(self, places: set[int]) -> int:
        """How many other places have kept leases."""
        with self._lock:
            return len(self._kept_uses.keys() - places)

    def keep(self, reads: Places, writes: Places) -> KeptLeases:
        """As `begin_use`, until what is returned is released. On the host, REQUIRES: can_keep."""
        self._use_any_stream()
        places = {*reads.numbers, *writes.numbers}
        with contextlib.ExitStack() as leases:
            self.begin_use(reads, writes)
            leases.callback(self.end_use, reads, writes)
            with self._lock:
                self._kept_uses.update(places)
            leases.callback(self._end_kept, places)
            return KeptLeases(leases.pop_all())

    def count_script_holds(self, change: int) -> None:
        """A block of memtide.hold begins (1) or ends (-1)."""
        with self._lock:
            self.script_holds += change

    def _end_kept(self, places: set[int]) -> None:
        with self._lock:
            self._kept_uses.subtract(places)
            self._kept_uses = +self._kept_uses  # Without the places that none is left of.

    def begin_use(self, reads: Places, writes: Places) -> None:
        """Leases these places for one operation, until `end_use`. ResourceExhausted: they are more
        than can be leased at once. REQUIRES: no place is in both."""
        if self.streams is not None:
            self.streams.see_stream()
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
            if writes.count:
                self._client.acquire(writes, Access.WRITE)
            try:
                if reads.count:
                    self._client.acquire(reads, Access.READ)
            except BaseException:
                if writes.count:
                    self._client.release(writes)
                raise

    def end_use(self, reads: Places, writes: Places) -> None:
        """Ends the leases of `begin_use`."""
        for places in (reads, writes):
            if places.count:
                self._client.release(places)

    def _make_room_for(self, places: set[int]) -> None:
        """Ends kept leases of other places until these fit beside the rest."""
        while len(places | self._kept_uses.keys()) > self.budget:
            if not self._make_room():
                others = len(self._kept_uses.keys() - places)
                raise ResourceExhausted(
                    f"{len(places)} chunks at once, beside {others} that sends and receives, or "
                    f"memtide.hold, use until they end, of at most {self.budget}"
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
