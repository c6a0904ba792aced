"""The interface of objects that the hooks notify of moments, iterations and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtide._util.hook_costs import HookCosts
from memtide._util.model_bytes import ModelBytes


@dataclass(frozen=True)
class SpeculativeBatches:
    """Batches of one offloaded step: all of them, those computed before it, and of these those that
    counted."""

    all: int = 0
    computed: int = 0
    counted: int = 0


class Observer:
    """Ignores all events. Observers override the methods that they need."""

    # Whether the observer needs moments now. If not, hooks need not report them.
    sampling = False

    def count_kept_activations(self, count: Callable[[], int]) -> None:
        """From now on, `count` returns the bytes that the process keeps for backward."""

    def count_model(self, count: ModelBytes) -> None:
        """The models that are trained have these bytes, in chunks and outside."""

    def count_hooks(self, costs: HookCosts) -> None:
        """From now on, hooks add what they cost to `costs`."""

    def moment(self, phase: str, name: str) -> None:
        """A module's pass or a piece of a step begins; phase is "forward", "backward" or "step"."""

    def end_iteration(self) -> None:
        """An optimizer has stepped."""

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        """A step was computed in parts; the script waited `waited_s` seconds for it."""


class Passing(Observer):
    """Passes all events on to the next observer. Classes that derive from it add to some."""

    def __init__(self, next_observer: Observer) -> None:
        self._next = next_observer

    @property
    def sampling(self) -> bool:  # type: ignore[override]
        return self._next.sampling

    def count_kept_activations(self, count: Callable[[], int]) -> None:
        self._next.count_kept_activations(count)

    def count_model(self, count: ModelBytes) -> None:
        self._next.count_model(count)

    def count_hooks(self, costs: HookCosts) -> None:
        self._next.count_hooks(costs)

    def moment(self, phase: str, name: str) -> None:
        self._next.moment(phase, name)

    def end_iteration(self) -> None:
        self._next.end_iteration()

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        self._next.stepped(waited_s, batches)
