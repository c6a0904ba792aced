"""Calls a function when an optimizer has stepped for the first time, and passes all events on."""

from __future__ import annotations

from collections.abc import Callable

from memtide._telemetry.observer import Observer, SpeculativeBatches


class FirstStep(Observer):
    """Passes all events on to `inner`."""

    def __init__(self, inner: Observer, act: Callable[[], None]) -> None:
        self._inner = inner
        self._act: Callable[[], None] | None = act

    @property
    def sampling(self) -> bool:  # type: ignore[override]
        return self._inner.sampling

    def count_kept_activations(self, count: Callable[[], int]) -> None:
        self._inner.count_kept_activations(count)

    def moment(self, phase: str, name: str) -> None:
        self._inner.moment(phase, name)

    def end_iteration(self) -> None:
        self._inner.end_iteration()
        if self._act is not None:
            act, self._act = self._act, None
            act()

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        self._inner.stepped(waited_s, batches)
