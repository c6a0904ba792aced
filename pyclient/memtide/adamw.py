"""AdamW for parameters of two bytes, which torch.optim.AdamW steps badly.

torch keeps moments in the parameter's own type, and a step of less than half of the distance to the
next bfloat16 number (1/512 to 1/256 of the parameter) is lost. Here moments are fp32, and there is
an fp32 master of each parameter (Micikevicius et al., arXiv 1710.03740), or rounding by chance.

A plain `torch.optim.Optimizer` that needs no daemon; where states do not fit, the daemon makes its
steps as it makes those of torch.optim.AdamW (docs/optimizers.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from memtide.chances import round_by_chance

ROUNDING_SEED = 1  # Any would do: the step and the element's number tell chances apart.
_WEIGHTS = ("master", "stochastic", "nearest")
_MOMENTS = (torch.float32, torch.bfloat16)
_TWO_BYTES = (torch.bfloat16, torch.float16)
_KEPT = ("master", "exp_avg", "exp_avg_sq")


class AdamW(Optimizer):
    """`lr`, `betas`, `eps`, `weight_decay` and `maximize` are torch.optim.AdamW's.

    `weights` says what becomes of parameters of two bytes, in bytes a parameter with its gradient
    and fp32 moments:

    - "master": 16; an fp32 copy, `state[p]["master"]`, is stepped, and the parameter is that,
      rounded. What a script writes to the parameter itself is lost with the next step: weights are
      loaded before the first;
    - "stochastic": 12; rounded up or down by chance, bfloat16 only;
    - "nearest": 12; rounded to nearest: small steps are lost.

    `moments`, torch.float32 or torch.bfloat16, is the type of both moments: 4 bytes less.
    Parameters of four and eight bytes are stepped in their own type. Gradients are dense.
    """

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
        that is none of the above, or that cannot be for one of the parameters."""
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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As any optimizer's. ValueError: as of the constructor."""
        told = {**self.defaults, **param_group}
        for name in ("lr", "eps", "weight_decay"):
            if not (0 <= told[name] < math.inf):
                raise ValueError(
                    f"{name} of AdamW is {told[name]}; it must be finite and at least 0"
                )
        if not all(0 <= beta < 1 for beta in told["betas"]):
            raise ValueError(
                f"betas of AdamW are {told['betas']}; each must be at least 0 and less than 1"
            )
        if told["weights"] not in _WEIGHTS:
            raise ValueError(f"weights of AdamW is {told['weights']!r}; it is one of {_WEIGHTS}")
        if told["moments"] not in _MOMENTS:
            raise ValueError(f"moments of AdamW is {told['moments']}; it is one of {_MOMENTS}")
        super().add_param_group(param_group)
        for each in self.param_groups[-1]["params"]:
            if not each.is_floating_point():
                self.param_groups.pop()
                raise ValueError(f"memtide.AdamW steps floating-point numbers, not {each.dtype}")
            if each.dtype is torch.float16 and told["weights"] == "stochastic":
                self.param_groups.pop()
                raise ValueError(
                    "weights of AdamW is 'stochastic', and a parameter float16: by chance only "
                    "bfloat16 is rounded; 'master' is for both"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As any optimizer's. RuntimeError: a gradient is sparse."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first_element = 0
        for group in self.param_groups:
            with_master: list[tuple[torch.Tensor, int]] = []
            without: list[tuple[torch.Tensor, int]] = []
            for each in group["params"]:
                if each.grad is not None:
                    self._begin(each, group)
                    kept = with_master if "master" in self.state[each] else without
                    kept.append((each, first_element))
                first_element += each.numel()
            for pairs in (with_master, without):
                self._step(pairs, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer's; moments and masters keep the types that they were saved in."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [each for group in self.param_groups for each in group["params"]]
        for number, each in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name in _KEPT and self.state[each][name].dtype is not value.dtype:
                    self.state[each][name] = value.to(each.device, copy=True)

    def _begin(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise RuntimeError("memtide.AdamW has no steps for sparse gradients")
        state = self.state[parameter]
        if state:
            return
        state["step"] = torch.tensor(0.0)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(
                parameter, dtype=group["moments"], memory_format=torch.preserve_format
            )
        if parameter.dtype in _TWO_BYTES and group["weights"] == "master":
            state["master"] = torch.empty_like(
                parameter, dtype=torch.float32, memory_format=torch.preserve_format
            ).copy_(parameter)

    def _step(self, pairs: list[tuple[torch.Tensor, int]], group: dict[str, Any]) -> None:
        if not pairs:
            return
        params = [each for each, _ in pairs]
        states = [self.state[each] for each in params]
        adamw(
            params,
            [each.grad for each in params],
            [state["master"] for state in states if "master" in state],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["step"] for state in states],
            [number for _, number in pairs],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            stochastic=group["weights"] == "stochastic",
        )


def adamw(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    masters: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    state_steps: list[torch.Tensor],
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
    """One step of each parameter, in place: torch's order of operations, each value rounded once.
    `masters`: all of them, or none. `first_elements`: for round_by_chance."""
    for index, parameter in enumerate(params):
        state_steps[index] += 1
        step = int(state_steps[index].item())
        own = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        gradient = grads[index].to(own)
        gradient = -gradient if maximize else gradient
        value = masters[index] if masters else parameter.to(own)
        momentum, variance = exp_avgs[index].to(own), exp_avg_sqs[index].to(own)
        value.mul_(1 - lr * weight_decay)
        momentum.lerp_(gradient, 1 - beta1)
        variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = variance.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
        value.addcdiv_(momentum, root, value=-lr / (1 - beta1**step))
        for kept, new in ((exp_avgs[index], momentum), (exp_avg_sqs[index], variance)):
            _keep(kept, new)
        if stochastic and parameter.dtype is torch.bfloat16 and not masters:
            first_element = first_elements[index]
            round_by_chance(
                value, parameter, seed=ROUNDING_SEED, step=step, first_element=first_element
            )
        else:
            _keep(parameter, value)


def _keep(kept: torch.Tensor, new: torch.Tensor) -> None:
    if kept is not new:  # It was stepped in place.
        kept.copy_(new)
