"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) for bf16 and fp16 parameters.

A plain `torch.optim.Optimizer` that needs no daemon. If states do not fit, its steps are computed
in parts, as those of torch.optim.AdamW are (docs/optimizers.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from memtide.optim._low_precision import LowPrecisionOptimizer, Tensors, in_turn


class AdamW(LowPrecisionOptimizer):
    """AdamW that does not lose small updates of bf16 and fp16 parameters.

        optimizer = memtide.AdamW(model.bfloat16().parameters(), lr=1e-4)
        optimizer = memtide.AdamW(parameters, weights="stochastic", moments=torch.bfloat16)

    `lr`, `betas`, `eps`, `weight_decay` and `maximize` are those of torch.optim.AdamW. `weights`
    and `moments` are explained in LowPrecisionOptimizer. A bf16 parameter with its gradient and
    states takes 16 bytes with a master and 12 without; bf16 moments save 4 bytes.
    """

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
        """ValueError: a number is negative or not finite, one of `betas` is not in [0, 1), or
        `weights` or `moments` is unknown or does not suit a parameter."""
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
    for now in in_turn(
        params,
        grads,
        masters,
        [exp_avgs, exp_avg_sqs],
        state_steps,
        first_elements,
        maximize=maximize,
        stochastic=stochastic,
    ):
        momentum, variance = now.states
        now.value.mul_(1 - lr * weight_decay)
        momentum.lerp_(now.gradient, 1 - beta1)
        variance.mul_(beta2).addcmul_(now.gradient, now.gradient, value=1 - beta2)
        root = variance.sqrt().div_(math.sqrt(1 - beta2**now.step)).add_(eps)
        now.value.addcdiv_(momentum, root, value=-lr / (1 - beta1**now.step))
