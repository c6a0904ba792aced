"""A run by a plan: the pools that it has, and at its end what was predicted beside what was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from memtide._daemon.inspection import LINKS
from memtide._daemon.private_daemon import Pools
from memtide._plan_file.plan_file import Plan
from memtide._telemetry.recorder import Summary
from memtide._util.sizes import format_size

# The daemon predicts from the second iteration on, and plans what stays from the third.
_SETTLING = 3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of a step: `predicted` and `measured` have the same unit."""

    name: str
    unit: str  # "s", "bytes" or "tokens/s".
    predicted: float
    measured: float


def planned_pools(plan: Plan, requested: Pools) -> Pools:
    """The pools of a plan, but for those that the user sets."""
    choice = plan.choice
    host_bytes, ssd_bytes = (
        _whole_chunks(size_bytes, choice.chunk_bytes)
        for size_bytes in (choice.host_pool_bytes, choice.ssd_pool_bytes)
    )
    return replace(
        requested,
        device_bytes=(
            plan.device_chunk_bytes() if requested.device_bytes is None else requested.device_bytes
        ),
        host_bytes=host_bytes if requested.host_bytes is None else requested.host_bytes,
        ssd_bytes=ssd_bytes if requested.ssd_bytes is None else requested.ssd_bytes,
    )


def rows(plan: Plan, summary: Summary) -> Iterator[Row]:
    """A line with a step's prediction beside the run's own steps: the median of their times, and
    the mean of the bytes that the daemon has moved in one, once they repeat."""
    answer = plan.answer
    measured_s = summary.typical_seconds()
    if not answer.step_s or not measured_s:
        return
    yield Row(name="step", unit="s", predicted=answer.step_s, measured=measured_s)
    tokens = plan.training.tokens()
    yield Row(
        name=f"speed at {plan.training.batch} x {plan.training.sequence} tokens a step",
        unit="tokens/s",
        predicted=tokens / answer.step_s,
        measured=tokens / measured_s,
    )
    moved, ranks = answer.moved_bytes, plan.choice.ranks
    measured = _moved_in_a_step(summary)
    for name, counter, predicted_bytes in (
        # The daemon counts what the links of all devices carry.
        ("host → device", "host_to_device_bytes", ranks * moved.to_device),
        ("device → host", "device_to_host_bytes", ranks * moved.from_device),
        ("host → ssd", "ssd_written_bytes", moved.drive_written),
        ("ssd → host", "ssd_read_bytes", moved.drive_read),
    ):
        if predicted_bytes or measured[counter]:
            yield Row(
                name=name, unit="bytes", predicted=predicted_bytes, measured=measured[counter]
            )


def _moved_in_a_step(summary: Summary) -> Mapping[str, float]:
    """The first iterations make states and learn what follows: they move more, and are left out if
    there are others."""
    settled = [each for each in summary.records if each.first_iteration > _SETTLING]
    total: Counter[str] = Counter()
    records = settled or summary.records
    for record in records:
        total.update(record.moved_bytes)
    steps = sum(record.iterations for record in records)
    return {link: total[link] / max(1, steps) for link in LINKS}


def print_comparison(plan: Plan, summary: Summary, console: Console) -> None:
    """Prints a row for each quantity of a step. Prints nothing if no step was measured."""
    compared = list(rows(plan, summary))
    if not compared:
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("a step, by the plan", style="cyan", no_wrap=True)
    for name in ("predicted", "measured", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in compared:
        difference = f"{row.measured / row.predicted - 1:+.0%}" if row.predicted else ""
        table.add_row(row.name, _text(row.predicted, row), _text(row.measured, row), difference)
    console.print(table)


def as_json(plan: Plan, summary: Summary) -> dict[str, Any]:
    """The rows as JSON values, by name."""
    return {
        row.name: {"unit": row.unit, "predicted": row.predicted, "measured": row.measured}
        for row in rows(plan, summary)
    }


def _whole_chunks(size_bytes: int, chunk_bytes: int) -> int:
    return -(-size_bytes // chunk_bytes) * chunk_bytes


def _text(value: float, row: Row) -> str:
    if row.unit == "bytes":
        return format_size(value)
    return f"{value:.3g} {row.unit}" if value < 999.5 else f"{value:,.0f} {row.unit}"
