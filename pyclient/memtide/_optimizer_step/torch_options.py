"""Options of an update that torch's own functional optimizer computes. Pure: no tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memtide._capi.optimizer_step import StepOptions

# What the functions take as two arguments, a parameter group has as one pair.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}


@dataclass(frozen=True)
class TorchCall:
    """A call of a functional optimizer of torch, without its tensors and numbers."""

    function: Callable[..., None]
    gradients: str  # The name of the argument, as those below.
    states: tuple[str, ...]  # Those that the call has.
    absent_states: tuple[str, ...]
    steps: str | None
    flags: tuple[tuple[str, Any], ...]
    threads: int  # Between which torch divides a tensor in a plain step.


@dataclass(frozen=True)
class TorchOptions(StepOptions):
    """An update by `call` with `numbers`, by the names of the arguments. Those of StepOptions that
    say how elements are stored, and the step, hold; others are not used."""

    call: TorchCall | None = None
    numbers: tuple[tuple[str, float], ...] = ()

    def following(self, group: Mapping[str, Any]) -> TorchOptions:
        """The options of the next step, with the present values of its parameter group."""
        present = dict(group)
        for pair, names in _PAIRS.items():
            present.update(zip(names, group.get(pair, ()), strict=False))
        numbers = tuple((name, present.get(name, number)) for name, number in self.numbers)
        counted = self.call is not None and self.call.steps is not None
        return replace(self, step=self.step + counted, fresh_states=False, numbers=numbers)
