"""The engine's answer to a question, from its answer to a near one, and from the search's own
estimates of both.

The engine's plays of three and of more micro-batches differ by what chance a drive's transfers have
in one of them. Where each of many further micro-batches took as long as the difference says, this
chance would count as often: steps with a drive of 2 GB/s took half as long, or twice. The estimate
knows no chance. So an iteration of a few micro-batches is played as it is, and its figures grow as
the estimate's do. Between machines that are alike, figures are as much above the estimate's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIGURES = (
    "elapsed_s",
    "compute_s",
    "recompute_s",
    "step_s",
    "to_device_bytes",
    "from_device_bytes",
    "drive_read_bytes",
    "drive_written_bytes",
)
_Reply = Mapping[str, Any]


def grown(played: _Reply, few: _Reply, many: _Reply, times: float) -> dict[str, Any]:
    """`played`, the PlanReply of few micro-batches, as of `times` as many. `few` and `many` are
    those of the search's own estimate. A figure that it does not have grows with their number."""

    def factor(name: str) -> float:
        before = float(few.get(name, 0.0))
        return float(many.get(name, 0.0)) / before if before > 0 else times

    figures = {name: factor(name) * float(played[name]) for name in _FIGURES if name in played}
    return {**played, **figures}


def corrected(
    estimate: _Reply | None, ends: Sequence[tuple[_Reply | None, _Reply | None]], share: float
) -> dict[str, Any] | None:
    """The estimate of a machine between two others, whose PlanReply by the engine and by the
    estimate `ends` are. `share`: how far it is from the first to the second, from 0 to 1. None:
    one of them does not fit."""
    fitting = [(above, below) for above, below in ends if above and below and _fits(above, below)]
    if estimate is None or not _fits(estimate) or len(fitting) < len(ends):
        return None
    weights = (1.0 - share, share)
    figures = {}
    for name in _FIGURES:
        pairs = [(float(above.get(name, 0)), float(below.get(name, 0))) for above, below in fitting]
        is_estimated = all(below > 0 for _, below in pairs)
        own = float(estimate.get(name, 0)) if is_estimated else 1.0
        figures[name] = own * sum(
            weight * (above / below if is_estimated else above)
            for weight, (above, below) in zip(weights, pairs, strict=True)
        )
    return {**estimate, **figures}


def _fits(*replies: _Reply) -> bool:
    return all("elapsed_s" in reply for reply in replies)
