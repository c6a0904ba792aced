"""What became of each program, whether that is a success, and the table of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

_MIB = 2**20


@dataclass
class Result:
    """What became of a program. None and empty: it did not come to that."""

    name: str
    kind: str
    failure: str = ""
    plain_peak_bytes: int | None = None
    budget_bytes: int | None = None
    measured_bytes: int | None = None  # The peak under memtide, as for the plain run.
    most_used_bytes: int | None = None  # The same as memtide's statistics show it.
    plain_seconds: float | None = None
    seconds: float | None = None
    plain_losses: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    activations: dict[str, Any] = field(default_factory=dict)
    was_run: bool = True

    @property
    def passed(self) -> bool:
        return not self.failure

    def losses_compared(self) -> str:
        if not self.plain_losses or not self.losses:
            return ""
        if self.plain_losses == self.losses:
            return f"{len(self.losses)} equal"
        if len(self.plain_losses) != len(self.losses):
            return f"{len(self.losses)} instead of {len(self.plain_losses)}"
        pairs = zip(map(float, self.plain_losses), map(float, self.losses), strict=True)
        return f"{max(abs(b / a - 1) for a, b in pairs):.1e} apart"


def verdict(result: Result) -> str:
    """Why a program that trained to its end did not pass, if it did not."""
    if not result.plain_losses:
        return "plain: no losses found"
    if result.losses != result.plain_losses:
        return f"losses: {result.losses_compared() or 'none found under memtide'}"
    most_bytes = max(result.measured_bytes or 0, result.most_used_bytes or 0)
    if most_bytes > (result.budget_bytes or 0):
        return f"the budget was {mib(result.budget_bytes)} MiB, and {mib(most_bytes)} were used"
    return ""


def mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _MIB:,.0f}"


def activations_line(activations: dict[str, Any]) -> str:
    if not activations:
        return ""
    line = f"{mib(activations['moved_bytes'])} MiB moved, "
    line += f"{activations['recomputed_blocks']} of {activations['blocks']} blocks recomputed"
    reasons = activations["blocks_left_alone"]
    return line + (f" ({'; '.join(f'{n} {why}' for why, n in reasons.items())})" if reasons else "")


def show(results: Iterable[Result], import_bytes: int, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("program", "kind", "plain MiB", "budget", "used", "own count"):
        table.add_column(heading, justify="left" if heading in ("program", "kind") else "right")
    for heading in ("plain s", "time", "losses", "activations"):
        table.add_column(heading, justify="right" if heading in ("plain s", "time") else "left")
    for each in results:
        ratio = each.seconds / each.plain_seconds if each.seconds and each.plain_seconds else None
        table.add_row(
            each.name,
            each.kind,
            mib(each.plain_peak_bytes),
            mib(each.budget_bytes),
            mib(each.measured_bytes),
            mib(each.most_used_bytes),
            f"{each.plain_seconds:.0f}" if each.plain_seconds else "",
            f"{ratio:.1f}x" if ratio else "",
            each.losses_compared(),
            activations_line(each.activations),
            style="" if each.passed else "bold" if each.was_run else "dim",
        )
    console.print(table)
    console.print(f"import torch: {mib(import_bytes)} MiB", style="dim")
    for each in results:
        if each.failure:
            console.print(f"{each.name}: {each.failure}", markup=False, style="bold")
