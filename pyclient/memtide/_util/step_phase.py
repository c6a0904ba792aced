"""The interface of the parts of memtide that act around optimizer steps.

A runtime has a list of them (_torch_hooks/runtime.py). In the thread that steps, it calls `know`
and `before_step` of all of them in the order of that list, and the methods behind a step in the
reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass
class Step:
    """One step of an optimizer."""

    optimizer: Optimizer
    is_first: bool  # This optimizer has made none before.
    is_lean: bool = False  # The script has put nothing in the place of adopted tensors before it.


class StepPhase:
    """A part that does nothing around steps. Parts override the methods that they need."""

    def know(self, optimizer: Optimizer) -> None:
        """The script has made an optimizer, or given it another parameter group."""

    def wrap(self, wrapping: nn.Module, model: nn.Module) -> None:
        """The script is about to wrap a model in DistributedDataParallel."""

    def before_step(self, step: Step) -> None:
        """The optimizer is about to step."""

    def after_step(self, step: Step) -> None:
        """The optimizer has stepped."""

    def end_iteration(self) -> None:
        """All parts have seen the end of the step: an iteration has ended."""
