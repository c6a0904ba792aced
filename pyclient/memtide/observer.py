"""What watches a training run: told of moments and iterations, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EarlyBatches:
    """How many batches a step by the daemon had, were made before it, and counted."""

    all: int = 0
    made: int = 0
    counted: int = 0


class Observer:
    """Watches nothing; the base of what does."""

    # Whether moments are wanted now; where not, hooks may save the trouble.
    sampling = False

    def moment(self, phase: str, name: str) -> None:
        """A module or an optimizer begins to work; phase is "forward", "backward" or "step"."""

    def end_iteration(self) -> None:
        """An optimizer has stepped."""

    def stepped(self, waited_s: float, early: EarlyBatches) -> None:
        """The daemon has stepped an optimizer, for which the script waited."""
