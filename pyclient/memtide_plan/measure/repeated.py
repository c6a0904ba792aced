"""Repeats an action for a time, and says how fast it was."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

_FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Units a second, in the middle of several trials."""

    per_s: float
    # Half of the difference between the first and the third quarter of the trials, relative to the
    # middle: what a trial differs by, most likely.
    spread: float
    took_s: float  # Trials and warm-up together.


def rate_of(action: Callable[[], float], seconds: float) -> Rate:
    """Repeats `action`, which returns the units that it has handled, for `seconds`, and for
    three trials at least. The first call warms up, and does not count."""
    began_s = time.monotonic()
    action()
    trials: list[float] = []
    while len(trials) < _FEWEST or time.monotonic() - began_s < seconds:
        before_s = time.perf_counter()
        units = action()
        trials.append(units / max(time.perf_counter() - before_s, 1e-9))
    quarters = statistics.quantiles(trials, n=4)
    middle = statistics.median(trials)
    return Rate(
        per_s=middle,
        spread=(quarters[2] - quarters[0]) / 2 / middle,
        took_s=time.monotonic() - began_s,
    )
