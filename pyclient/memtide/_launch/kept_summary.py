"""Keeps the summary of a process that may be killed where `memtide run` finds it, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable

from memtide._telemetry.observer import Observer, Passing

# The summary is this old at most, and keeping it takes at most this part of the time.
_KEPT_EVERY_S, _MOST_PART = 5.0, 0.005


class KeptSummary(Passing):
    """Calls `keep` after the first step, and then now and then after others."""

    def __init__(self, next_observer: Observer, keep: Callable[[], None]) -> None:
        super().__init__(next_observer)
        self._keep = keep
        self._due_s = float("-inf")

    def end_iteration(self) -> None:
        super().end_iteration()
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        self._keep()
        ended_s = time.monotonic()
        self._due_s = ended_s + max(_KEPT_EVERY_S, (ended_s - began_s) / _MOST_PART)
