"""Runs the batches of a step, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from memtide._capi.client import Client
from memtide._daemon.training import Training
from memtide._optimizer_step.partition import Batch, BatchLimits, Geometry
from memtide._optimizer_step.rank_difference import SaysDifference
from memtide._optimizer_step.rank_parts import RankParts
from memtide._optimizer_step.self_check import SelfCheck
from memtide._optimizer_step.torch_kernels import TorchKernels
from memtide._optimizer_step.torch_options import TorchOptions
from memtide._util.devices import type_name

# The fewest calls in flight: while one computes, another reads its chunks and a third writes.
_FEWEST_CALLS = 3
_FEWEST_CHUNKS = 8
# The chunks that Adam needs: a parameter's, two of states, a shadow chunk of each, and gradients,
# whose chunks have other borders. With fewer, several calls fetch the same chunk, each for a piece
# of it.
_WHOLE_CHUNKS = 3 * 2 + 4
# In small pools torch's functions have the chunks of a batch by turns. A larger batch fetches each
# chunk less often, and needs more memory of the process: this one up to four chunks.
_CHUNKS_BY_TURNS = 14
# All calls in flight together use at most 1 / _HOST_PART of the host slots.
_HOST_PART = 4

Result = TypeVar("Result")


class StepCalls:
    """The step calls of one client. Used from the thread that trains."""

    def __init__(
        self,
        client: Client,
        training: Training | None = None,
        name_at: Callable[[int], str] = str,
    ) -> None:
        """`training`: that of which this process is one of several ranks. `name_at`: the name of
        the parameter at an address."""
        self._client = client
        properties = client.properties
        self.geometry = Geometry(properties.base, properties.chunk_bytes)
        # With tensors on a GPU, a plain step has the bits of CUDA's functions, and parts those of
        # the CPU's.
        self.has_plain_bits = type_name(properties.dl_device) == "cpu"
        self.ranks: RankParts | None = None
        if training is not None and self.has_plain_bits:
            says_difference = SaysDifference(training.rank, self.geometry, name_at)
            self.ranks = RankParts(client, self.geometry, training, says_difference)
        # Whether ranks may make the present step's parts once.
        self.shares = False
        self._kernels = TorchKernels(client, self.geometry, has_plain_bits=self.has_plain_bits)
        self._of_ranks = TorchKernels(client, self.geometry, self.ranks) if self.ranks else None
        self._self_check = SelfCheck()
        self._slots = properties.host_slots
        # Whether the chunks of a step need room beside the script's leases.
        self.shares_lease_budget = not properties.device_slots
        self.count_non_finite = False  # Counting costs one more pass over the gradients.
        # The calls in flight: on a CPU as many on any machine, so that all ranks cut alike.
        self.depth = _FEWEST_CALLS
        if not self.has_plain_bits:
            calls = self._slots // _HOST_PART // _WHOLE_CHUNKS
            self.depth = max(_FEWEST_CALLS, min(calls, len(os.sched_getaffinity(0)) // 2 + 2))
        self._threads = ThreadPoolExecutor(self.depth, "memtide-step")

    def can_make(self, options: TorchOptions, tensors: int) -> bool:
        """Whether parts of such steps have the right bits. `tensors`: the number of those that a
        step changes."""
        return not self.has_plain_bits or self._self_check.agrees(options, tensors)

    @property
    def limits(self) -> BatchLimits:
        """The limits of one batch."""
        most = self._client.limits.chunks_per_call
        fair = self._slots // _HOST_PART // self.depth
        chunks_apart = 0
        if self.shares:
            # A part of several ranks has all chunks at a time. Ranks have cut shared parts alike,
            # so that the budget of this moment does not count.
            most_chunks, chunks_apart = max(_CHUNKS_BY_TURNS, fair), self._slots // 2
            most_chunks = min(most_chunks, max(_FEWEST_CHUNKS, chunks_apart))
        else:
            by_turns = self._room // 2 < _WHOLE_CHUNKS
            most_chunks = max(_CHUNKS_BY_TURNS if by_turns else _WHOLE_CHUNKS, fair)
        return BatchLimits(min(most_chunks, most), min(chunks_apart, most))

    @property
    def _room(self) -> int:
        """The most chunks of a call that can be in host memory at a time. With a device, one slot
        stays free, as chunks pass through host memory on their way."""
        properties = self._client.properties
        return properties.lease_budget if self.shares_lease_budget else max(1, self._slots - 1)

    @property
    def copied_places(self) -> int:
        """The most places of a batch that only copies, so that ranks can share it; 0: they share
        no part, as a part of several ranks has all chunks at a time."""
        return min(self.limits.chunks, self._slots // 2) // 2

    @property
    def early_room(self) -> int:
        """The chunks that a speculative call may have at a time: with more than half of the room,
        no part could be speculative (LeaseLedger.leave)."""
        return min(self.limits.chunks, max(1, self._room // 2))

    @property
    def speculative_depth(self) -> int:
        """The most calls of a speculative step at a time: at least half of the slots stay free."""
        return max(1, min(self.depth, self._slots // 2 // self.early_room))

    def make(self, batches: Iterable[Batch], shadows: Mapping[int, int]) -> int:
        """Computes batches into shadow chunks (`shadows`: by place). Returns how many elements of
        gradients are infinite or NaN, if they are counted. Raises the error of a batch, but not
        before all calls have ended."""
        room = min(self.limits.chunks, self._room)
        in_flight = [self.start(partial(self._make, batch, shadows, room)) for batch in batches]
        try:
            return sum(batch.result() for batch in in_flight)
        except BaseException:
            stop(in_flight)
            raise

    def make_early(self, batch: Batch, shadows: Mapping[int, int]) -> int:
        """Computes one batch in the calling thread, in `early_room` chunks. Returns what `make`
        does."""
        return self._make(batch, shadows, self.early_room)

    def _make(self, batch: Batch, shadows: Mapping[int, int], room: int) -> int:
        kernels = self._of_ranks if self.shares and self._of_ranks is not None else self._kernels
        return kernels.make(batch, shadows, room, count_non_finite=self.count_non_finite)

    def start(self, work: Callable[[], Result]) -> Future[Result]:
        """Runs `work` in one of the threads that make calls."""
        return self._threads.submit(work)

    def close(self) -> None:
        """Ends the threads. REQUIRES: no call is in flight."""
        self._threads.shutdown()
        self._kernels.close()


def stop(in_flight: Iterable[Future[Result]]) -> list[Future[Result]]:
    """Cancels the futures that have not begun and waits for the others; returns the others."""
    begun = [future for future in in_flight if not future.cancel()]
    for future in begun:
        future.exception()
    return begun
