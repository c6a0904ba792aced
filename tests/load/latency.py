"""Quantiles of a histogram: of (bound, number of durations up to it), by rising bounds."""

from __future__ import annotations

Buckets = list[tuple[float, float]]


def quantile(buckets: Buckets, part: float) -> float:
    """The bound within which `part` of the durations are, by interpolation; zero if there are
    none."""
    if not buckets or buckets[-1][1] == 0:
        return 0.0
    wanted, lower, below = part * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower


def since(now: Buckets, before: Buckets) -> Buckets:
    """The durations that were added between two states of one histogram."""
    return [(bound, count - old) for (bound, count), (_, old) in zip(now, before, strict=True)]
