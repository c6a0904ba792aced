"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) for parameters of two bytes.

A plain `torch.optim.Optimizer` that needs no daemon; where states do not fit, the daemon makes its
steps as it makes those of torch.optim.AdamW (docs/optimizers.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from memtide.two_bytes import Tensors, TwoByteOptimizer, in_turn


class AdamW(TwoByteOptimizer):
    """`lr`, `betas`, `eps`, `weight_decay` and `maximize` are torch.optim.AdamW's; `weights` and
    `moments`: TwoByteOptimizer. Bytes for a bfloat16 parameter and its gradient: 16 with a master,
    12 without; with moments of bfloat16, 4 less."""

    STATES = ("exp_avg", "exp_avg_sq")
    NUMBERS = ("lr", "eps", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        weights: str = "master",
        moments: torch.dtype = torch.float32,
    ) -> None:
        """ValueError: a negative or infinite number, `betas` not in [0, 1), `weights` or `moments`
        that there is not, or not for one of the parameters."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "weights": weights,
            "moments": moments,
        }
        super().__init__(params, defaults)

    def _update(self, *lists: Any, **options: Any) -> None:
        adamw(*lists, **options)


def adamw(
    params: Tensors,
    grads: Tensors,
    masters: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    state_steps: Tensors,
    first_elements: list[int],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    stochastic: bool,
) -> None:
    """One step of each parameter, in place, in torch's order of operations."""
    for each in in_turn(
        params,
        grads,
        masters,
        [exp_avgs, exp_avg_sqs],
        state_steps,
        first_elements,
        maximize=maximize,
        stochastic=stochastic,
    ):
        momentum, variance = each.states
        each.value.mul_(1 - lr * weight_decay)
        momentum.lerp_(each.gradient, 1 - beta1)
        variance.mul_(beta2).addcmul_(each.gradient, each.gradient, value=1 - beta2)
        root = variance.sqrt().div_(math.sqrt(1 - beta2**each.step)).add_(eps)
        each.value.addcdiv_(momentum, root, value=-lr / (1 - beta1**each.step))
