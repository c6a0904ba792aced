"""What many micro-batches take where a step waits for a drive.

The engine's plays of three and of more micro-batches differ by what chance the drive's transfers
have in one of them. Where each of many further micro-batches took as long as the difference says,
this chance would count as often: steps with a drive of 2 GB/s took half as long, or twice. The
search's own estimate knows no chance. So one iteration of a few micro-batches is played as it is,
and each of its figures grows as that estimate's does.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def grown(
    played: Mapping[str, Any], few: Mapping[str, Any], many: Mapping[str, Any], times: float
) -> dict[str, Any]:
    """`played`, the PlanReply of few micro-batches, as of `times` as many. `few` and `many` are
    those of the search's own estimate. A figure that it does not have grows with their number."""

    def factor(name: str) -> float:
        before = float(few.get(name, 0.0))
        return float(many.get(name, 0.0)) / before if before > 0 else times

    figures = {name: factor(name) * float(played[name]) for name in _FIGURES if name in played}
    return {**played, **figures}
