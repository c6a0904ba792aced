"""`memtide plan --check`: every row of data/rows.jsonl predicted, beside what was published."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from memtide._plan_file.answer import Answer
from memtide._util.console import make_console, print_whole
from memtide.errors import InvalidArgument
from rich.table import Table

from memtide_plan import calibration, rows
from memtide_plan.estimate import estimate
from memtide_plan.row_inputs import Inputs
from memtide_plan.row_results import (
    Result,
    SheetsSummary,
    Summary,
    predict,
    sheets_summary,
    source_medians,
    summary,
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows, with calibrated constants and from specification sheets alone."""

    results: Sequence[Result]
    sheets: Sequence[Result]


def run(*, as_json: bool = False) -> int:
    """Predicts all rows and prints the result. Returns the exit status: 0, whatever the errors."""
    report = make_report(rows.load())
    if as_json:
        json.dump(as_document(report), sys.stdout, indent=1)
        print()
    else:
        _print(report)
    return 0


def make_report(of: Sequence[rows.Row]) -> Report:
    """The rows, predicted twice."""
    results = predict(of, estimates)
    with calibration.tried(calibration.unfitted()):
        sheets = predict(of, estimates, rates="sheets")
    return Report(results=results, sheets=sheets)


def as_document(report: Report) -> dict[str, Any]:
    """A report as JSON values."""
    return {
        "rows": [_row_document(*pair) for pair in zip(report.results, report.sheets, strict=True)],
        "summary": asdict(summary(report.results)),
        "sheets": asdict(sheets_summary(report.sheets)),
        "median_of_source": dict(source_medians(_judged(report.results))),
    }


def goals(of: Summary, sheets: SheetsSummary) -> Iterator[tuple[str, str, str, bool]]:
    """Each figure that the planner is held to: its name, its goal, its value, and whether the goal
    is reached."""
    yield "rows with all inputs; sources", ">= 120; >= 9", f"{of.rows}; {of.sources}", (
        of.rows >= 120 and of.sources >= 9
    )
    yield from _at_least("rows within their tolerance", of.within_tolerance, 0.90)
    yield from _at_most("median of the sources' medians", of.median_of_sources, 0.05)
    name = f"H100 and RTX 5090 ({of.frontier_rows} rows)"
    yield from _at_most(f"{name}: median", of.frontier_median, 0.03)
    yield from _at_most(f"{name}: worst", of.frontier_worst, 0.08)
    yield from _at_most("from sheets alone: median", sheets.median, 0.10)
    yield from _at_least("from sheets alone: in the interval", sheets.in_interval, 0.90)
    yield "wrong 'fits'", "0", f"{of.wrong_fits}", of.wrong_fits == 0
    yield from _at_most("wrong 'does not fit'", of.wrong_does_not_fit, 0.05)


def estimates(questions: Sequence[Inputs]) -> list[Answer | InvalidArgument]:
    """The estimate's answers, as many at once as there are processors: each that plans is a
    process of its own."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(_estimated, questions))


def _estimated(inputs: Inputs) -> Answer | InvalidArgument:
    try:
        return estimate(inputs.model, inputs.training, inputs.machine, system=inputs.system)
    except InvalidArgument as error:
        return error


def _at_least(name: str, value: float | None, goal: float) -> Iterator[tuple[str, str, str, bool]]:
    yield name, f">= {goal:.0%}", _percent(value), value is not None and value >= goal


def _at_most(name: str, value: float | None, goal: float) -> Iterator[tuple[str, str, str, bool]]:
    yield name, f"<= {goal:.0%}", _percent(value), value is not None and value <= goal


def _print(report: Report) -> None:
    console = make_console()
    table = Table("row", "theirs", "ours", "error", "tolerance", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for result in report.results:
        table.add_row(*_cells(result))
    print_whole(console, table)
    medians = Table("source", "rows", "within tolerance", "median error")
    judged = _judged(report.results)
    by_source = dict(source_medians(judged))
    for source in sorted({result.row.source for result in judged}):
        own = [result for result in judged if result.row.source == source]
        met = sum(result.met() for result in own)
        medians.add_row(source, f"{len(own)}", f"{met}", _percent(by_source.get(source)))
    print_whole(console, medians)
    held = Table("figure", "goal", "value", "")
    for name, goal, value, is_met in goals(summary(report.results), sheets_summary(report.sheets)):
        held.add_row(name, goal, value, "met" if is_met else "missed")
    print_whole(console, held)


def _cells(result: Result) -> tuple[str, ...]:
    row, figure = result.row, result.row.figure
    error = result.error()
    return (
        row.id,
        _value(figure.kind, figure.value),
        "-" if result.ours is None else _value(figure.kind, result.ours),
        "" if error is None else f"{error:+.1%}",
        f"{row.tolerance:.0%}" if row.tolerance else "",
        _verdict(result),
    )


def _verdict(result: Result) -> str:
    row = result.row
    verdict = "met" if result.met() else f"missed {result.reason}".strip()
    if not row.counted:
        return f"not counted: {row.note}"
    return f"{verdict} (calibrates)" if row.calibration else verdict


def _value(kind: str, value: float) -> str:
    if kind == rows.FITS:
        return "fits" if value else "does not fit"
    if kind.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    unit = {"step_s": " s", "tokens_per_s": " tokens/s", "drive_years": " years"}.get(kind, "")
    return f"{value:.4g}{unit}" if value < 1000 else f"{value:.0f}{unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _judged(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.row.counted and not r.row.calibration]


def _row_document(result: Result, from_sheets: Result) -> dict[str, Any]:
    row = result.row
    return {
        "id": row.id,
        "source": row.source,
        "where": row.where,
        "block": row.block,
        "system": row.system,
        "kind": row.figure.kind,
        "theirs": row.figure.value,
        "ours": result.ours,
        "error": result.error(),
        "tolerance": row.tolerance,
        "met": result.met(),
        "counted": row.counted,
        "calibration": row.calibration,
        "reason": result.reason,
        "from_sheets": from_sheets.ours,
        "in_interval": from_sheets.in_interval,
        "note": row.note,
    }
