"""Fits constants of data/calibration.json to the rows that are marked for it.

A constant is fitted to the rows whose prediction it changes, so that the squares of their errors,
each as a share of its row's tolerance, are least. One after another is moved along a line, as often
as it takes until all stay where they are (coordinate descent, golden sections).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from memtide_plan import calibration
from memtide_plan.row_results import Estimates, predict
from memtide_plan.rows import Row

# Each constant is searched within this factor of its value before the fit.
_WIDEST = 1.6
_GOLDEN = (math.sqrt(5) - 1) / 2
_SECTIONS = 7  # Which leave 2% of the range.
_ROUNDS = 3
_MISSED = 25.0  # The loss of a row that is not predicted: as if it were wrong by five tolerances.


def fitted_constants() -> dict[str, tuple[str, ...]]:
    """The constants that are fitted, and the calibrating rows that each is fitted to."""
    return {
        name: tuple(entry["fitted_to"])
        for name, entry in calibration.document().items()
        if "fitted_to" in entry
    }


def fit(
    rows: Iterable[Row], estimates: Estimates, constants: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """The values of these constants that suit their rows best, to three digits. Their values
    before the fit are where the search begins. REQUIRES: each names rows that calibrate."""
    by_id = {row.id: row for row in rows if row.calibration}
    own = {name: [by_id[of] for of in names] for name, names in constants.items()}
    values = {name: calibration.unfitted()[name] for name in constants}
    for _ in range(_ROUNDS):
        before = dict(values)
        for name, its_rows in own.items():
            values[name] = _best(name, values, its_rows, estimates)
        if values == before:
            break
    return values


def loss(rows: Sequence[Row], estimates: Estimates, values: Mapping[str, float]) -> float:
    """The sum of squares of the rows' errors with these values, as shares of their tolerances."""
    with calibration.tried(values):
        errors = [result.error() for result in predict(rows, estimates)]
    return sum(
        _MISSED if error is None else (math.log1p(error) / row.tolerance) ** 2
        for row, error in zip(rows, errors, strict=True)
    )


def _best(
    name: str, values: Mapping[str, float], rows: Sequence[Row], estimates: Estimates
) -> float:
    first = calibration.unfitted()[name]
    most = min(float(calibration.document()[name].get("at_most", 1.0)), first * _WIDEST)

    def lost(value: float) -> float:
        return loss(rows, estimates, {**values, name: value})

    return float(f"{_least(lost, first / _WIDEST, most):.3g}")


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_SECTIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
