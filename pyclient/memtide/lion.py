"""Lion (Chen et al., arXiv 2302.06675), which torch.optim does not have.

Steps of one size, by the sign of an interpolated momentum: one state a parameter instead of Adam's
two. A plain `torch.optim.Optimizer` that needs no daemon; where states do not fit, the daemon makes
its steps as it makes those of torch.optim.AdamW (docs/optimizers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """`lr` is a third to a tenth of what AdamW would have, `weight_decay` three to ten times as
    much, as the paper advises. Weight decay is decoupled. Gradients are dense."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        """ValueError: a negative or infinite `lr` or `weight_decay`, or `betas` not in [0, 1)."""
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not (0 <= value < math.inf):
                raise ValueError(f"{name} of Lion is {value}; it must be finite and at least 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas of Lion are {betas}; each must be at least 0 and less than 1")
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As any optimizer's. RuntimeError: a gradient is sparse."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [each for each in group["params"] if each.grad is not None]
            for each in params:
                if each.grad.is_sparse:
                    raise RuntimeError("Lion has no steps for sparse gradients")
                if not self.state[each]:
                    self.state[each]["exp_avg"] = torch.zeros_like(
                        each, memory_format=torch.preserve_format
                    )
            lion(
                params,
                [each.grad for each in params],
                [self.state[each]["exp_avg"] for each in params],
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                maximize=group["maximize"],
            )
        return loss


def lion(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """One step of each parameter, in place; the paper's program."""
    for parameter, gradient, momentum in zip(params, grads, exp_avgs, strict=True):
        followed = -gradient if maximize else gradient
        parameter.mul_(1 - lr * weight_decay)
        update = momentum.mul(beta1).add_(followed, alpha=1 - beta1).sign_()
        parameter.add_(update, alpha=-lr)
        momentum.mul_(beta2).add_(followed, alpha=1 - beta2)
