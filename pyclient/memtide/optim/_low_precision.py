"""The base class of memtide's own optimizers, which step bf16 and fp16 parameters.

torch.optim has an optimizer's states in the parameter's own type. There, an update of less than
half of the distance to the next bf16 number (1/512 to 1/256 of the parameter) is lost. Here states
are fp32, and each parameter has an fp32 master (Micikevicius et al., arXiv 1710.03740) or is
rounded stochastically. All arithmetic is in fp32 (for fp64 parameters in fp64), and each value is
rounded once, when it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from memtide.optim._stochastic_rounding import stochastic_round

# Any seed would do: random bits differ by the step and by the element's number.
ROUNDING_SEED = 1
_WEIGHTS = ("master", "stochastic", "nearest")
_MOMENTS = (torch.float32, torch.bfloat16)
_TWO_BYTES = (torch.bfloat16, torch.float16)
Tensors = list[torch.Tensor]


class LowPrecisionOptimizer(Optimizer):
    """An optimizer that also has the options `weights`, `moments` and `maximize`.

    `weights` sets how bf16 and fp16 parameters are stepped:

    - "master": an fp32 copy, `state[p]["master"]`, is stepped, and the parameter is its rounded
      copy. Values that a script writes to the parameter are overwritten by the next step, so
      weights must be loaded before the first step;
    - "stochastic": the new parameter is rounded stochastically; bf16 only;
    - "nearest": the new parameter is rounded to nearest, and small updates are lost.

    `moments`, torch.float32 or torch.bfloat16, is the type of the states. Gradients are dense.
    """

    STATES: ClassVar[tuple[str, ...]]  # The names of each parameter's states; they begin as zeros.
    NUMBERS: ClassVar[tuple[str, ...]]  # The options that must be finite and at least 0.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim.Optimizer.add_param_group. ValueError: an option is out of range or does
        not suit a parameter."""
        name, options = type(self).__name__, {**self.defaults, **param_group}
        for number in self.NUMBERS:
            if not (0 <= options[number] < math.inf):
                raise ValueError(
                    f"{number} of {name} is {options[number]}; it must be finite and at least 0"
                )
        if not all(0 <= beta < 1 for beta in options["betas"]):
            raise ValueError(
                f"betas of {name} are {options['betas']}; each must be at least 0 and less than 1"
            )
        for option, known in (("weights", _WEIGHTS), ("moments", _MOMENTS)):
            if options[option] not in known:
                raise ValueError(f"{option} of {name} is {options[option]!r}; it is one of {known}")
        super().add_param_group(param_group)
        try:
            for parameter in self.param_groups[-1]["params"]:
                _check(parameter, name, options["weights"])
        except ValueError:
            self.param_groups.pop()
            raise

    # torch's stubs have two overloads here, its own optimizers one signature.
    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """As torch.optim.Optimizer.step. RuntimeError: a gradient is sparse."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first_element = 0
        for group in self.param_groups:
            with_master: list[tuple[torch.Tensor, int]] = []
            without: list[tuple[torch.Tensor, int]] = []
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._begin(parameter, group)
                    pairs_of_kind = with_master if "master" in self.state[parameter] else without
                    pairs_of_kind.append((parameter, first_element))
                first_element += parameter.numel()
            for pairs in (with_master, without):
                if pairs:
                    self._update(*self._lists(pairs), **self._options(group))
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch.optim.Optimizer.load_state_dict, but states have the types with which they were
        saved, where torch would cast them to the parameter's."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                typed = name in ("master", *self.STATES)
                if typed and self.state[parameter][name].dtype is not value.dtype:
                    self.state[parameter][name] = value.to(parameter.device, copy=True)

    def _update(self, *lists: Any, **options: Any) -> None:
        """One step of some parameters. `lists` are those of `in_turn`, with a list for each state;
        `options` are the group's."""
        raise NotImplementedError

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        stochastic = group["weights"] == "stochastic"
        numbers = {name: group[name] for name in (*self.NUMBERS, "maximize")}
        return {**numbers, "beta1": beta1, "beta2": beta2, "stochastic": stochastic}

    def _begin(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise RuntimeError(f"memtide.{type(self).__name__} cannot step sparse gradients")
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
        params = [parameter for parameter, _ in pairs]
        states = [self.state[parameter] for parameter in params]
        return [
            params,
            [parameter.grad for parameter in params],
            [state["master"] for state in states if "master" in state],
            *([state[name] for state in states] for name in self.STATES),
            [state["step"] for state in states],
            [number for _, number in pairs],
        ]


@dataclass
class Stepping:
    """One parameter's step: its number, from 1 on, and the tensors that are changed in place."""

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
    """Yields parameters one after the other, in the type in which they are stepped. The new values
    of one are rounded and stored when the caller takes the next.

    `masters`: one for each parameter, or none at all. `first_elements`: the number of each
    parameter's first element in the optimizer.
    """
    for index, parameter in enumerate(params):
        state_steps[index] += 1
        dtype = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        gradient = grads[index].to(dtype)
        tensors = [values[index] for values in states]
        now = Stepping(
            int(state_steps[index].item()),
            -gradient if maximize else gradient,
            masters[index] if masters else parameter.to(dtype),
            [state.to(dtype) for state in tensors],
        )
        yield now
        for state, new in zip(tensors, now.states, strict=True):
            _store(state, new)
        if stochastic and parameter.dtype is torch.bfloat16 and not masters:
            options = {"step": now.step, "first_element": first_elements[index]}
            stochastic_round(now.value, parameter, seed=ROUNDING_SEED, **options)
        else:
            _store(parameter, now.value)


def _check(parameter: torch.Tensor, name: str, weights: str) -> None:
    if not parameter.is_floating_point():
        raise ValueError(f"memtide.{name} steps floating-point numbers, not {parameter.dtype}")
    if parameter.dtype is torch.float16 and weights == "stochastic":
        raise ValueError(
            f"weights of {name} is 'stochastic', and a parameter is float16: only bfloat16 can be "
            "rounded stochastically; 'master' is for both"
        )


def _store(target: torch.Tensor, new: torch.Tensor) -> None:
    if target is not new:  # Otherwise it was stepped in place, in its own type.
        target.copy_(new)
