"""The table of all programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from results import Result, mib
from rich.console import Console
from rich.table import Table


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
