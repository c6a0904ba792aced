"""The interface of what differs where page faults are answered, in host memory, and on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memtide._torch_hooks.collectives import Collectives
from memtide._torch_hooks.on_gpu.gpu_collectives import GpuCollectives
from memtide._util.step_phase import StepPhase


class DeviceSide(StepPhase):
    """The interface; its methods do nothing. HostSide and GpuSide derive from it."""

    collectives: Collectives | GpuCollectives

    def begin_iteration(self) -> None:
        """Called before the first forward pass after a step."""

    def begin_phase(self) -> None:
        """Called before a forward pass while leases are needed. It may make them unnecessary."""

    def begin_evaluation(self, _module: torch.nn.Module) -> None:
        """Called before each module's forward without gradients, while leases are needed. It may
        make them unnecessary until that ends."""

    def adopted(self, parameter: torch.Tensor) -> None:
        """Called for each parameter that is in a chunk now."""

    def around_rest(self, _arguments: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Around torch's function for what has no parts in an offloaded step."""
        return contextlib.nullcontext()

    def end_collective(self) -> bool:
        """Ends kept leases of collectives. False: there are none that can be ended."""
        return False

    def close(self) -> None:
        """Ends all of this."""

    def end_failed_step(self) -> None:
        """Called when an optimizer's step has raised."""
