"""A plan's predictions, and the time that its iterations have taken."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

from memtide._activations.plan import MOVES, ActivationPlan, Choice

_MOST_ITERATIONS = 1000
_NS = 1e-9


def summary_of(plan: ActivationPlan) -> dict[str, int]:
    """How many blocks are recomputed, moved at least in part, or kept as they are."""
    recomputed = sum(block.rest is Choice.RECOMPUTE for block in plan.blocks)
    moved = sum(
        block.rest is not Choice.RECOMPUTE and not MOVES.isdisjoint(vars(block).values())
        for block in plan.blocks
    )
    return {
        "kept": len(plan.blocks) - recomputed - moved,
        "moved": moved,
        "recomputed": recomputed,
    }


def line_of(plan: ActivationPlan) -> str:
    """A plan in one line, with the time of its iteration against one in unlimited memory."""
    numbers = ", ".join(f"{count} {what}" for what, count in summary_of(plan).items())
    line = f"activations: {len(plan.blocks)} blocks: {numbers}"
    if plan.predicted is not None and plan.unlimited is not None and plan.unlimited.elapsed_ns:
        line += f"; predicted {plan.predicted.elapsed_ns / plan.unlimited.elapsed_ns:.2f}x"
    return line


class PlanOutcome:
    """The iterations that one plan has held for from their beginning. Only the latest plan that
    predicts something counts."""

    def __init__(self) -> None:
        self._plan: ActivationPlan | None = None  # The plan with which the running iteration began.
        self._began_s = 0.0
        self._judged: ActivationPlan | None = None
        self._seconds: deque[float] = deque(maxlen=_MOST_ITERATIONS)

    def end_iteration(self, plan: ActivationPlan | None) -> None:
        """An iteration ends; the next one begins with `plan`."""
        now_s = time.monotonic()
        if self._plan is not None and self._plan is self._judged:
            self._seconds.append(now_s - self._began_s)
        if plan is not None and plan is not self._judged and plan.predicted is not None:
            self._judged = plan
            self._seconds.clear()
            # Its first iteration moves what the plan before has left elsewhere.
            self._plan = None
        else:
            self._plan = plan
        self._began_s = now_s

    def as_json(self) -> dict[str, Any]:
        """Seconds of an iteration, as predicted and, in the median, as measured; {}: no plan has
        predicted anything."""
        plan = self._judged
        if plan is None or plan.predicted is None:
            return {}
        return {
            "plan": summary_of(plan),
            "predicted_s": plan.predicted.elapsed_ns * _NS,
            "unlimited_s": plan.unlimited.elapsed_ns * _NS if plan.unlimited else None,
            "measured_s": statistics.median(self._seconds) if self._seconds else None,
            "search_s": plan.search_ns * _NS,
        }
