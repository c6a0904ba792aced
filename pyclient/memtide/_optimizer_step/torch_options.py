"""Options of an update that torch's own functional optimizer computes: values, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

# A parameter group has one pair where the functions take two arguments.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}


@dataclass(frozen=True)
class TensorNumber:
    """A number that a call has in a tensor without dimensions; parts have it on the CPU."""

    value: float
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """A new tensor with the number."""
        return torch.tensor(self.value, dtype=self.dtype, device="cpu")


Number = float | TensorNumber


def number_of(value: Any, *, has_plain_bits: bool = True) -> Number | None:
    """A number of a call; None: it is in a tensor that cannot be repeated, or not to the bits of a
    plain step, if parts have these."""
    if not isinstance(value, torch.Tensor):
        number: float = value
        return number
    if value.numel() != 1 or value.requires_grad or value.is_meta:
        return None
    if value.dim() or not value.is_floating_point():
        return None if has_plain_bits else float(value.item())
    return TensorNumber(value.item(), value.dtype)


def argument_of(number: Number) -> float | torch.Tensor:
    """The argument that a function gets for a number."""
    return number.tensor() if isinstance(number, TensorNumber) else number


@dataclass(frozen=True)
class TorchCall:
    """A call of a functional optimizer, without its tensors and numbers."""

    function: Callable[..., None]
    gradients: str  # The name of the argument, as those below.
    states: tuple[str, ...]  # The states of the call.
    absent_states: tuple[str, ...]
    single_numbers: tuple[str, ...]  # Arguments that are a changing number for each parameter.
    steps: str | None
    has_first_elements: bool
    flags: tuple[tuple[str, Any], ...]
    threads: int  # Between which torch divides a tensor in a plain step.
    modes: int  # The modes of float_modes.py in the thread that steps.


@dataclass(frozen=True)
class TorchOptions:
    """An update by `call` with `numbers`, by the names of the arguments."""

    call: TorchCall
    numbers: tuple[tuple[str, Number], ...] = ()
    step: int = 1  # The number of the step, from 1.
    gradient_factor: float = 1.0  # Gradients are multiplied by it first.
    fresh_states: bool = False  # True: states begin with this step, and are not read.
    parameter_format: torch.dtype = torch.float32
    gradient_format: torch.dtype = torch.float32
    state_format: torch.dtype = torch.float32
    # The type of a parameter whose master is stepped; None: it has none.
    rounded_format: torch.dtype | None = None
    # The call's `single_numbers` before the step, and after it.
    single_numbers: tuple[TensorNumber, ...] = ()
    next_single_numbers: tuple[TensorNumber, ...] = field(default=(), compare=False)

    def following(self, group: Mapping[str, Any]) -> TorchOptions:
        """The options of the next step, with the present values of its parameter group."""
        present = dict(group)
        for pair, names in _PAIRS.items():
            present.update(zip(names, group.get(pair, ()), strict=False))
        numbers = []
        for name, number in self.numbers:
            new = number_of(present[name]) if name in present else number
            numbers.append((name, number if new is None else new))
        return replace(
            self,
            step=self.step + (self.call.steps is not None),
            fresh_states=False,
            numbers=tuple(numbers),
            single_numbers=self.next_single_numbers,
        )
