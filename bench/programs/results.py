"""The result of each program, and whether that is a success."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_MIB = 2**20


@dataclass
class Result:
    """The result of a program. None and empty: it did not come to that."""

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
    plain_apart: float = 0.0  # How far plain runs are apart that were repeated.
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
        apart = apart_by(self.plain_losses, self.losses)
        if apart is None:
            return f"{len(self.losses)} instead of {len(self.plain_losses)}"
        plain = f", plain runs {self.plain_apart:.1e}" if self.plain_apart else ""
        return f"{apart:.1e} apart{plain}"


def apart_by(some: list[str], others: list[str]) -> float | None:
    """The largest difference of two runs' losses, as a part of them; None: they are not as many."""
    if len(some) != len(others):
        return None
    pairs = zip(map(float, some), map(float, others), strict=True)
    return max((abs(b / a - 1) for a, b in pairs), default=0.0)


def verdict(result: Result) -> str:
    """Why a program that trained to its end did not pass, if it did not."""
    if not result.plain_losses:
        return "plain: no losses found"
    apart = apart_by(result.plain_losses, result.losses)
    # Runs that are as far from what is exact may be twice as far from each other.
    if apart is None or apart > 2 * result.plain_apart:
        return f"losses: {result.losses_compared() or 'none found under memtide'}"
    most_bytes = max(result.measured_bytes or 0, result.most_used_bytes or 0)
    if most_bytes > (result.budget_bytes or 0):
        return f"the budget was {mib(result.budget_bytes)} MiB, and {mib(most_bytes)} were used"
    return ""


def mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _MIB:,.0f}"
