"""Parameters that no optimizer steps: sessions of one user that hold the same keep them once.

Several scripts train adapters over one frozen model, or beside a frozen reference model. After a
step, the chunks in which no optimizer has a parameter are offered to the node's daemon, which finds
those that other scripts of the user have offered, too (docs/decisions/0037). A script may write
such a parameter all the same: then it gets a copy first.

Ranks that train data-parallel on a device each write the same to their parameters and states. They
offer all of them, once: the daemon looks again whenever they were written.
"""

from __future__ import annotations

import weakref

import torch.distributed as dist
from torch.optim import Optimizer

from memtide._capi.client import Kind, Places
from memtide._memory.managed_memory import ManagedMemory
from memtide._util.step_phase import Step, StepPhase
from memtide.errors import MemtideError

# Other scripts may come at any time. Until then an offer costs one call, and nothing else after the
# first, so that the steps between two of them grow up to this many.
_MOST_STEPS_BETWEEN = 64


class CommonParameters(StepPhase):
    """Offers them. Used by the thread that trains. `on_device`: chunks are leased at a device.
    Ranks without one have a job in common, and share by another way (docs/decisions/0035)."""

    def __init__(self, memory: ManagedMemory, *, on_device: bool = False) -> None:
        self._memory = memory
        self._on_device = on_device
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._shared: set[int] = set()  # Places.
        self._offered: set[int] = set()  # The places that are offered whenever they were written.
        self._steps = 0
        self._next = 1  # The step after which chunks are offered.

    def know(self, optimizer: Optimizer) -> None:
        """Parameters of this optimizer are not offered."""
        self._optimizers.add(optimizer)

    def after_step(self, step: Step) -> None:
        """REQUIRES: this process has no chunk of parameters in use."""
        self.know(step.optimizer)
        if self._on_device and is_rank():
            self._offer_when_written()
            return
        self._steps += 1
        if self._steps < self._next:
            return
        self._next += min(self._steps, _MOST_STEPS_BETWEEN)
        places = self._memory.arenas.of(Kind.PARAMETER).places
        self._shared &= places
        offered = places - self._shared - self._stepped()
        if not offered:
            return
        try:
            self._shared.update(self._memory.client.offer(Places(offered)))
        except MemtideError:
            return  # The daemon drains, or lacks room: each script keeps its own.

    def _offer_when_written(self) -> None:
        memory = self._memory
        places = memory.arenas.of(Kind.PARAMETER).places | memory.arenas.state_places()
        self._offered &= places
        new = places - self._offered
        if not new:
            return
        try:
            memory.client.offer_when_written(Places(new))
        except MemtideError:
            return  # The daemon drains, or lacks room: each rank keeps its own.
        self._offered |= new

    def _stepped(self) -> set[int]:
        """The places of parameters that optimizers have."""
        return {
            place
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            for place in self._memory.addresses.element_places(parameter)
        }


def is_rank() -> bool:
    """Whether this process trains with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
