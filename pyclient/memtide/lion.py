"""Lion (Chen et al., arXiv 2302.06675), which torch.optim does not have.

Steps of one size, by the sign of an interpolated momentum: one state a parameter instead of Adam's
two. A plain `torch.optim.Optimizer` that needs no daemon; where states do not fit, the daemon makes
its steps as it makes those of torch.optim.AdamW (docs/optimizers.md).
"""

from __future__ import annotations

from typing import Any

import torch

from memtide.two_bytes import Tensors, TwoByteOptimizer, in_turn


class Lion(TwoByteOptimizer):
    """`lr` is a third to a tenth of what AdamW would have, `weight_decay` three to ten times as
    much, as the paper advises. Weight decay is decoupled. `weights` and `moments`:
    TwoByteOptimizer. Bytes for a bfloat16 parameter, with its gradient: 12 with a master, 8
    without; with a momentum of bfloat16, 2 less."""

    STATES = ("exp_avg",)
    NUMBERS = ("lr", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
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
            "weight_decay": weight_decay,
            "maximize": maximize,
            "weights": weights,
            "moments": moments,
        }
        super().__init__(params, defaults)

    def _update(self, *lists: Any, **options: Any) -> None:
        lion(*lists, **options)


def lion(
    params: Tensors,
    grads: Tensors,
    masters: Tensors,
    exp_avgs: Tensors,
    state_steps: Tensors,
    first_elements: list[int],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool,
    stochastic: bool,
) -> None:
    """One step of each parameter, in place; the paper's program."""
    for each in in_turn(
        params,
        grads,
        masters,
        [exp_avgs],
        state_steps,
        first_elements,
        maximize=maximize,
        stochastic=stochastic,
    ):
        (momentum,) = each.states
        each.value.mul_(1 - lr * weight_decay)
        update = momentum.mul(beta1).add_(each.gradient, alpha=1 - beta1).sign_()
        each.value.add_(update, alpha=-lr)
        momentum.mul_(beta2).add_(each.gradient, alpha=1 - beta2)
