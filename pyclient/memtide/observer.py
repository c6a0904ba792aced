"""What watches a training run: told of moments and iterations, changes nothing."""

from __future__ import annotations


class Observer:
    """Watches nothing; the base of what does."""

    # Whether moments are wanted now; where not, hooks may save the trouble.
    sampling = False

    def moment(self, phase: str, name: str) -> None:
        """A module or an optimizer begins to work; phase is "forward", "backward" or "step"."""

    def end_iteration(self) -> None:
        """An optimizer has stepped."""
