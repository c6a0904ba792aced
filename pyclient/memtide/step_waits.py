"""How long a script waited for its optimizers' steps by the daemon, and what was made before."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

from memtide.observer import EarlyBatches

_KEPT = 10_000


class StepWaits:
    """The steps of one run."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._batches = self._made = self._counted = 0
        self._plain_s: deque[float] = deque(maxlen=_KEPT)  # Nothing was made before.
        self._early_s: deque[float] = deque(maxlen=_KEPT)

    def add(self, waited_s: float, early: EarlyBatches) -> None:
        """A step has been made."""
        self.count += 1
        self.total_s += waited_s
        self._batches += early.all
        self._made += early.made
        self._counted += early.counted
        if early.counted:
            self._early_s.append(waited_s)
        elif self.count > 1:  # The first one makes twins, too.
            self._plain_s.append(waited_s)

    def hidden(self) -> float | None:
        """The part of a step's time that was hidden behind backward, in the steps of which some was
        made early: of what the median step took that was not. None: one of the two is missing."""
        if not self._early_s or not self._plain_s:
            return None
        return max(0.0, 1 - median(self._early_s) / median(self._plain_s))

    def as_json(self) -> dict[str, Any]:
        """What --stats writes."""
        return {
            "batches": self._batches,
            "made_early": self._made,
            "made_early_and_counted": self._counted,
            "made_again": self._made - self._counted,
            "hidden": self.hidden(),
        }
