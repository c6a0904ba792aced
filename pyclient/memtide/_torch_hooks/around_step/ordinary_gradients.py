"""Gradients that stay where torch makes them, while everything fits.

A script that sets gradients to None makes new ones in each iteration. To move each into a chunk
costs some 0.2 ms, a third of a step's CPU time where models are small (4 layers of width 64: 27 ms
for 17), and gains nothing as long as nothing has to leave memory: what follows, a step in the
script's thread, uses each once. So they stay in ordinary memory while the pool would have room for
them, too, and the machine has plenty beside the pool.

This is decided when an optimizer is made and at the end of each iteration, for all parameters that
are trained then. The gradients of one iteration may stay although they would not fit: those of
parameters that are trained from the middle of an iteration on, or of a model that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.optim import Optimizer

from memtide._daemon.memory_cgroup import tightest_limit
from memtide._memory.managed_memory import ManagedMemory
from memtide._telemetry.process_memory import available_host_bytes
from memtide._util.step_phase import StepPhase

# The part of free memory that gradients may have, as no pool and no limit covers them.
_PART_OF_FREE = 8
_STATES = 3  # At most, for each parameter, as long as they are not there.


class OrdinaryGradients(StepPhase):
    """Decides where gradients stay."""

    def __init__(
        self,
        memory: ManagedMemory,
        adopted: Callable[[], Iterable[torch.Tensor]],
        moves_all: Callable[[], bool],
    ) -> None:
        """`adopted`: the parameters in chunks. `moves_all`: whether all gradients are needed in
        chunks, as steps are made in parts."""
        self.stay = False
        self._memory = memory
        self._adopted = adopted
        self._moves_all = moves_all
        self._most_bytes = 0  # The most that were found to be little beside what is free.

    def know(self, optimizer: Optimizer) -> None:
        self._decide(rooms=1 + _STATES)

    def end_iteration(self) -> None:
        self._decide(rooms=1)
        gradients = self._memory.arenas.gradients
        if self.stay and gradients.chunks and gradients.trim():
            self._memory.pressure.note_chunks()

    def _decide(self, rooms: int) -> None:
        """`rooms`: how many times the bytes of the trained parameters are to have room beside the
        chunks that do not hold gradients."""
        arenas, ledger = self._memory.arenas, self._memory.ledger
        trained_bytes = sum(p.nbytes for p in self._adopted() if p.requires_grad)
        chunks = arenas.chunks_of_steps() - arenas.gradients.chunks
        chunks += rooms * -(-trained_bytes // arenas.addresses.chunk_bytes)
        fits = chunks <= min(ledger.budget, ledger.slots) and not self._moves_all()
        self.stay = fits and self._is_little(trained_bytes)

    def _is_little(self, trained_bytes: int) -> bool:
        if trained_bytes > self._most_bytes:
            limit = tightest_limit()
            free_bytes = available_host_bytes()
            if limit is not None:
                free_bytes = min(free_bytes, limit.free_bytes)
            if trained_bytes * _PART_OF_FREE > free_bytes:
                return False
            self._most_bytes = trained_bytes
        return True
