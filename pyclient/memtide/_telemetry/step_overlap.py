"""Time that a script waited for offloaded steps, and how much speculative steps saved."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

from memtide._telemetry.observer import SpeculativeBatches

_MOST_WAITS = 10_000


class StepWaits:
    """The offloaded steps of one run."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._batches = self._computed = self._counted = 0
        # The waits of steps without speculative batches, and of those with some.
        self._plain_s: deque[float] = deque(maxlen=_MOST_WAITS)
        self._speculative_s: deque[float] = deque(maxlen=_MOST_WAITS)

    def add(self, waited_s: float, batches: SpeculativeBatches) -> None:
        """Adds a step."""
        self.count += 1
        self.total_s += waited_s
        self._batches += batches.all
        self._computed += batches.computed
        self._counted += batches.counted
        if batches.counted:
            self._speculative_s.append(waited_s)
        elif self.count > 1:  # The first step also allocates the shadow chunks.
            self._plain_s.append(waited_s)

    def hidden(self) -> float | None:
        """The part of a step's time that speculation hid behind backward, from 0 to 1.

        It is 1 - (median wait for steps with speculative batches) / (median wait for steps without
        any). None: there were no steps of one of the two sorts.
        """
        if not self._speculative_s or not self._plain_s:
            return None
        return max(0.0, 1 - median(self._speculative_s) / median(self._plain_s))

    def as_json(self) -> dict[str, Any]:
        """The values in the --stats file (docs/optimizers.md)."""
        return {
            "batches": self._batches,
            "computed": self._computed,
            "counted": self._counted,
            "computed_again": self._computed - self._counted,
            "hidden": self.hidden(),
        }
