"""Calls a function when an optimizer has stepped for the first time, and passes all events on."""

from __future__ import annotations

from collections.abc import Callable

from memtide._telemetry.observer import Observer, Passing


class FirstStep(Passing):
    """Calls `act` once."""

    def __init__(self, next_observer: Observer, act: Callable[[], None]) -> None:
        super().__init__(next_observer)
        self._act: Callable[[], None] | None = act

    def end_iteration(self) -> None:
        super().end_iteration()
        if self._act is not None:
            act, self._act = self._act, None
            act()
