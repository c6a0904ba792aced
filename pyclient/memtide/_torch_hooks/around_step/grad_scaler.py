"""`torch.amp.GradScaler` and parts of steps that are made during backward.

A scaler multiplies all gradients by 1 / scale when backward is over. The factor is known before: so
parts are made early of gradients times it, which gives the bits that they would have after it
(speculative_step.py). Where gradients overflow, the scaler leaves out the step, and they never
count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.speculative_step import SpeculativeSteps

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler


def unscaling(
    memory: ManagedMemory, speculative: SpeculativeSteps, original: Callable[..., Any]
) -> Callable[..., Any]:
    """torch.amp.GradScaler._unscale_grads_."""

    @functools.wraps(original)
    def _unscale_grads_(
        scaler: GradScaler,
        optimizer: Optimizer,
        inv_scale: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with speculative.unscaling(scaler, optimizer, inv_scale):
            result = original(scaler, optimizer, inv_scale, *args, **kwargs)
            # A chunk's version counts write leases. The next write to gradients, as clipping makes,
            # would use the leases that scaling has left here, and go unnoticed.
            memory.ledger.release_all()
            memory.client.flush()
            return result

    return _unscale_grads_
