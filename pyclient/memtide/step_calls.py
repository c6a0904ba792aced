"""Batches of a step, handed to the daemon: several calls under way at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from memtide._native import Client
from memtide.step_pieces import Batch, Geometry, calls_of

# Calls under way together: one reads, one computes, one writes.
DEPTH = 3
_FEWEST_CHUNKS = 8
# Adam's: a parameter's chunk, two of states, their twins, and gradients, whose chunks have other
# borders. A call that may have fewer brings chunks of which another call needs the rest.
_WHOLE_CHUNKS = 3 * 2 + 4
# Of host memory, for the calls under way.
_HOST_PART = 4

Result = TypeVar("Result")


class StepCalls:
    """The calls of one client. Used from the thread that trains."""

    def __init__(self, client: Client) -> None:
        self._client = client
        properties = client.properties
        self.geometry = Geometry(properties.base, properties.chunk_bytes)
        # Where chunks pass through host memory to a device, one slot stays free for them.
        self.host_slots = properties.host_slots
        room = properties.host_slots - (properties.device_slots > 0)
        fair = properties.host_slots // _HOST_PART // DEPTH
        # With more than half, nothing could be made during backward (Ledger.leave).
        half = (self.host_slots if properties.device_slots else properties.lease_budget) // 2
        self.most_chunks = min(room, max(_FEWEST_CHUNKS, min(_WHOLE_CHUNKS, half), fair))
        self.count_non_finite = False  # It costs a pass over the gradients.
        self._threads = ThreadPoolExecutor(DEPTH, "memtide-step")

    def make(self, batches: Iterable[Batch], twins: Mapping[int, int]) -> int:
        """Makes batches into twins. Returns how many gradients are infinite or NaN, where that is
        counted. Raises what one of them did, when none is under way."""
        under_way = [
            self.start(lambda batch=batch: self.make_one(batch, twins)) for batch in batches
        ]
        try:
            return sum(batch.result() for batch in under_way)
        except BaseException:
            stop(under_way)
            raise

    def make_one(self, batch: Batch, twins: Mapping[int, int]) -> int:
        """Makes one batch in the calling thread. Returns what `make` does."""
        return sum(
            self._client.step(*call, count_non_finite=self.count_non_finite)
            for call in calls_of(batch, self.geometry, twins)
        )

    def start(self, work: Callable[[], Result]) -> Future[Result]:
        """Does something in one of the threads that make calls."""
        return self._threads.submit(work)

    def close(self) -> None:
        """Ends the threads. REQUIRES: nothing is under way."""
        self._threads.shutdown()


def stop(under_way: Iterable[Future[Result]]) -> list[Future[Result]]:
    """Takes back what has not begun and waits for what has; returns the latter."""
    begun = [one for one in under_way if not one.cancel()]
    for one in begun:
        one.exception()
    return begun
