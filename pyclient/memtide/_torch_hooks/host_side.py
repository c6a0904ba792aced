"""The parts of a runtime that only host memory needs, where page faults are answered."""

from __future__ import annotations

import torch

from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.collectives import Collectives
from memtide._torch_hooks.device_side import DeviceSide
from memtide._torch_hooks.oversized_operands import OversizedOperands
from memtide._util.step_phase import Step


class HostSide(DeviceSide):
    """Copies of oversized operands, in the thread that makes this, and the host pool's balloon."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._ledger = memory.ledger
        self._oversized = OversizedOperands(memory)
        self.collectives = Collectives(memory)

    def before_step(self, step: Step) -> None:
        self.collectives.settle()

    def adopted(self, parameter: torch.Tensor) -> None:
        self._oversized.see(parameter)

    def end_iteration(self) -> None:
        self._ledger.refresh()  # The balloon may have grown or shrunk.
        self._oversized.look()

    def close(self) -> None:
        """Ends the copies."""
        self._oversized.close()
