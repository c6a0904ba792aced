"""What memtide's own optimizers have in common: parameters of two bytes, stepped well.

torch.optim keeps an optimizer's states in the parameter's own type, and a step of less than half of
the distance to the next bfloat16 number (1/512 to 1/256 of the parameter) is lost. Here states are
fp32, and there is an fp32 master of each parameter (Micikevicius et al., arXiv 1710.03740), or
rounding by chance. All arithmetic is in fp32 (of parameters of eight bytes, in theirs), and each
value is rounded once, when it is stored: as the daemon's kernels do it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from memtide.chances import round_by_chance

ROUNDING_SEED = 1  # Any would do: the step and the element's number tell chances apart.
_WEIGHTS = ("master", "stochastic", "nearest")
_MOMENTS = (torch.float32, torch.bfloat16)
_TWO_BYTES = (torch.bfloat16, torch.float16)
Tensors = list[torch.Tensor]


class TwoByteOptimizer(Optimizer):
    """An optimizer with the options `weights`, `moments` and `maximize`, beside its own.

    `weights` says what becomes of parameters of two bytes:

    - "master": an fp32 copy, `state[p]["master"]`, is stepped, and the parameter is that, rounded.
      What a script writes to the parameter itself is lost with the next step: weights are loaded
      before the first;
    - "stochastic": it is rounded up or down by chance; bfloat16 only;
    - "nearest": it is rounded to nearest, and small steps are lost.

    `moments`, torch.float32 or torch.bfloat16, is the type of the states. Gradients are dense.
    """

    STATES: ClassVar[tuple[str, ...]]  # Kept for each parameter, zeros at first.
    NUMBERS: ClassVar[tuple[str, ...]]  # Options that are finite and not negative.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As any optimizer's. ValueError: an option that makes no sense, or not for one of the
        parameters."""
        name, told = type(self).__name__, {**self.defaults, **param_group}
        for number in self.NUMBERS:
            if not (0 <= told[number] < math.inf):
                raise ValueError(
                    f"{number} of {name} is {told[number]}; it must be finite and at least 0"
                )
        if not all(0 <= beta < 1 for beta in told["betas"]):
            raise ValueError(
                f"betas of {name} are {told['betas']}; each must be at least 0 and less than 1"
            )
        for option, known in (("weights", _WEIGHTS), ("moments", _MOMENTS)):
            if told[option] not in known:
                raise ValueError(f"{option} of {name} is {told[option]!r}; it is one of {known}")
        super().add_param_group(param_group)
        try:
            for each in self.param_groups[-1]["params"]:
                _check(each, name, told["weights"])
        except ValueError:
            self.param_groups.pop()
            raise

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
                if pairs:
                    self._update(*self._lists(pairs), **self._options(group))
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer's; states keep the types that they were saved in."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [each for group in self.param_groups for each in group["params"]]
        for number, each in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                typed = name in ("master", *self.STATES)
                if typed and self.state[each][name].dtype is not value.dtype:
                    self.state[each][name] = value.to(each.device, copy=True)

    def _update(self, *lists: Any, **options: Any) -> None:
        """One step of some parameters: the lists of `in_turn`, each state's by itself, and the
        options by name."""
        raise NotImplementedError

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        stochastic = group["weights"] == "stochastic"
        own = {name: group[name] for name in (*self.NUMBERS, "maximize")}
        return {**own, "beta1": beta1, "beta2": beta2, "stochastic": stochastic}

    def _begin(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise RuntimeError(f"memtide.{type(self).__name__} has no steps for sparse gradients")
        state = self.state[parameter]
        if state:
            return
        state["step"] = torch.tensor(0.0)
        layout = torch.preserve_format
        for name in self.STATES:
            dtype = group["moments"]
            state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=layout)
        if parameter.dtype in _TWO_BYTES and group["weights"] == "master":
            master = torch.empty_like(parameter, dtype=torch.float32, memory_format=layout)
            state["master"] = master.copy_(parameter)

    def _lists(self, pairs: list[tuple[torch.Tensor, int]]) -> list[Any]:
        params = [each for each, _ in pairs]
        states = [self.state[each] for each in params]
        return [
            params,
            [each.grad for each in params],
            [state["master"] for state in states if "master" in state],
            *([state[name] for state in states] for name in self.STATES),
            [state["step"] for state in states],
            [number for _, number in pairs],
        ]


@dataclass
class Stepping:
    """One parameter's step: its number, from 1 on, and what is to be changed in place."""

    step: int
    gradient: torch.Tensor
    value: torch.Tensor
    states: Tensors


def in_turn(
    params: Tensors,
    grads: Tensors,
    masters: Tensors,
    states: list[Tensors],
    state_steps: Tensors,
    first_elements: list[int],
    *,
    maximize: bool,
    stochastic: bool,
) -> Iterator[Stepping]:
    """Parameters one after the other, in the type in which they are stepped. What has been made of
    one is stored when the next is asked for. `masters`: all of them, or none. `first_elements`: the
    number of each one's first element in the optimizer."""
    for index, parameter in enumerate(params):
        state_steps[index] += 1
        own = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        gradient = grads[index].to(own)
        kept = [values[index] for values in states]
        now = Stepping(
            int(state_steps[index].item()),
            -gradient if maximize else gradient,
            masters[index] if masters else parameter.to(own),
            [state.to(own) for state in kept],
        )
        yield now
        for state, new in zip(kept, now.states, strict=True):
            _store(state, new)
        if stochastic and parameter.dtype is torch.bfloat16 and not masters:
            told = {"step": now.step, "first_element": first_elements[index]}
            round_by_chance(now.value, parameter, seed=ROUNDING_SEED, **told)
        else:
            _store(parameter, now.value)


def _check(parameter: torch.Tensor, name: str, weights: str) -> None:
    if not parameter.is_floating_point():
        raise ValueError(f"memtide.{name} steps floating-point numbers, not {parameter.dtype}")
    if parameter.dtype is torch.float16 and weights == "stochastic":
        raise ValueError(
            f"weights of {name} is 'stochastic', and a parameter float16: by chance only bfloat16 "
            "is rounded; 'master' is for both"
        )


def _store(kept: torch.Tensor, new: torch.Tensor) -> None:
    if kept is not new:  # Else it was stepped in place.
        kept.copy_(new)
