"""A prediction for a row beside what was published, and the summary of many.

Errors are relative, and signed: 0.1 is a tenth more than published. A figure of a row that is not
predicted, because its model does not fit by the estimate or because its system is not known, has no
error, and counts as missed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from memtide._plan_file.answer import Answer
from memtide.errors import InvalidArgument

from memtide_plan.row_inputs import Inputs, inputs_of
from memtide_plan.rows import FITS, Row

# Answers to questions, in their order; an error where a question cannot be asked.
Estimates = Callable[[Sequence[Inputs]], Sequence[Answer | InvalidArgument]]

# The figures of the rows that others' best planner is held to.
FRONTIER_BLOCKS = ("H100 frontier", "RTX 5090")
FRONTIER_SOURCE = "als244/dataflow"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row, predicted."""

    row: Row
    ours: float | None  # In the unit of the row's figure; None: not predicted.
    fits: bool | None  # By the estimate; None: the row was not asked.
    in_interval: bool | None = None  # The published figure; None: the figure is no time.
    reason: str = ""  # Why it is not predicted.

    def error(self) -> float | None:
        """None: not predicted, or no number."""
        if self.ours is None or self.row.figure.kind == FITS:
            return None
        return self.ours / self.row.figure.value - 1

    def met(self) -> bool:
        """Whether the prediction is right within the row's tolerance."""
        if self.row.figure.kind == FITS:
            return self.fits is not None and self.fits == bool(self.row.figure.value)
        error = self.error()
        return error is not None and abs(error) <= self.row.tolerance

    def really_fits(self) -> bool:
        """By the publication. A training that was measured did fit."""
        return self.row.figure.kind != FITS or bool(self.row.figure.value)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures that the planner is held to. Rows that calibrate are left out of all shares and
    medians, and rows that are not counted of everything. None: there is no such row."""

    rows: int
    sources: int
    calibrating: int
    within_tolerance: float | None
    median_of_sources: float | None
    frontier_rows: int
    frontier_median: float | None
    frontier_worst: float | None
    wrong_fits: int
    wrong_does_not_fit: float | None  # A share of the rows that do fit.


@dataclass(frozen=True, kw_only=True)
class SheetsSummary:
    """The same rows, predicted from specification sheets alone."""

    median: float | None
    in_interval: float | None


def predict(rows: Iterable[Row], estimates: Estimates, *, rates: str = "measured") -> list[Result]:
    """A result for each row, in order. Equal questions are asked once, and all together."""
    rows = list(rows)
    questions = {row.id: _question(row, rates) for row in rows}
    distinct = {repr(inputs): inputs for inputs in questions.values() if isinstance(inputs, Inputs)}
    answers = dict(zip(distinct, estimates(list(distinct.values())), strict=True))
    found = {
        name: answers[repr(inputs)] if isinstance(inputs, Inputs) else inputs
        for name, inputs in questions.items()
    }
    return [_result(row, found) for row in rows]


def _question(row: Row, rates: str) -> Inputs | str:
    """The question of the row, or why it asks nothing."""
    if row.model is None:
        return f"not all inputs are published: {row.note}"
    try:
        return inputs_of(row, rates=rates)
    except InvalidArgument as error:
        return str(error)


def _result(row: Row, found: Mapping[str, Answer | InvalidArgument | str]) -> Result:
    answer = found[row.id]
    if not isinstance(answer, Answer):
        return Result(row=row, ours=None, fits=None, reason=str(answer))
    if row.figure.kind == FITS:
        return Result(row=row, ours=float(answer.fits), fits=answer.fits)
    if not answer.fits:
        return Result(row=row, ours=None, fits=False, reason=f"does not fit: {answer.limit}")
    low, high = _interval(row, answer)
    in_interval = None if low is None or high is None else low <= row.figure.value <= high
    ours = _ours(row, answer)
    if row.figure.of is not None:
        other = found.get(row.figure.of)
        speed = other.tokens_per_s if isinstance(other, Answer) else None
        ours = ours / speed if ours is not None and speed else None
    reason = "" if ours is not None else "the estimate says nothing of it"
    return Result(row=row, ours=ours, fits=True, in_interval=in_interval, reason=reason)


def _ours(row: Row, answer: Answer) -> float | None:
    return {
        "step_s": answer.step_s,
        "tokens_per_s": answer.tokens_per_s,
        # Publications say what torch's allocator had at most, without what CUDA itself has.
        "device_bytes": None if answer.choice is None else answer.choice.device_pool_bytes,
        "host_bytes": float(answer.least_host_bytes),
        "drive_years": answer.drive_years,
        "ratio": answer.tokens_per_s,
    }[row.figure.kind]


def _interval(row: Row, answer: Answer) -> tuple[float | None, float | None]:
    """In which the published figure lies, if it is a time or a speed."""
    if answer.low_s is None or answer.high_s is None:
        return None, None
    if row.figure.kind == "step_s":
        return answer.low_s, answer.high_s
    if row.figure.kind == "tokens_per_s":
        tokens = float(row.training["batch"] * row.training["sequence"])
        return tokens / answer.high_s, tokens / answer.low_s
    return None, None


def summary(results: Iterable[Result]) -> Summary:
    """The figures of predictions with the calibrated constants."""
    counted = [result for result in results if result.row.counted]
    judged = [result for result in counted if not result.row.calibration]
    frontier = [result for result in judged if _is_frontier(result.row)]
    errors = [abs(error) for error in _errors(frontier)]
    fitting = [r for r in judged if r.really_fits() and r.fits is not None]
    return Summary(
        rows=len(counted),
        sources=len({result.row.source for result in counted}),
        calibrating=len(counted) - len(judged),
        within_tolerance=_share(result.met() for result in judged),
        median_of_sources=_median(median for _, median in source_medians(judged)),
        frontier_rows=len(frontier),
        frontier_median=_median(errors),
        frontier_worst=max(errors, default=None),
        wrong_fits=sum(bool(r.fits) and not r.really_fits() for r in judged),
        wrong_does_not_fit=_share(not r.fits for r in fitting),
    )


def sheets_summary(results: Iterable[Result]) -> SheetsSummary:
    """The figures of predictions from specification sheets alone."""
    judged = [r for r in results if r.row.counted and not r.row.calibration]
    return SheetsSummary(
        median=_median(abs(error) for error in _errors(judged)),
        in_interval=_share(r.in_interval for r in judged if r.in_interval is not None),
    )


def source_medians(results: Iterable[Result]) -> Iterator[tuple[str, float]]:
    """For each source with a number that is predicted, the median of its absolute errors."""
    in_order = sorted(results, key=lambda result: result.row.source)
    for source, group in groupby(in_order, key=lambda result: result.row.source):
        median = _median(abs(error) for error in _errors(group))
        if median is not None:
            yield source, median


def _is_frontier(row: Row) -> bool:
    return row.source == FRONTIER_SOURCE and row.block in FRONTIER_BLOCKS


def _errors(results: Iterable[Result]) -> Iterator[float]:
    for result in results:
        error = result.error()
        if error is not None:
            yield error


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.median(listed) if listed else None


def _share(flags: Iterable[bool | None]) -> float | None:
    listed = [bool(flag) for flag in flags]
    return sum(listed) / len(listed) if listed else None
