"""The orders in which a stage computes its forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The costs of a schedule for a stage, after Narayanan et al. (ICML 2021), section 3."""

    name: str
    weight_versions: int
    flushes: bool  # The pipeline is empty between batches.
    one_backward_each: bool  # A backward follows each forward, as soon as there is one.

    def in_flight(self, micro_batches: int, depth: int, stage: int) -> int:
        """The most micro-batches of which a stage has activations."""
        if not self.one_backward_each:
            return micro_batches
        return min(micro_batches, depth - stage)

    def admits(self, micro_batches: int, depth: int) -> bool:
        """Whether it can be: without a flush, a new version is there in time only if a batch has as
        many micro-batches as there are stages. With one stage there is nothing to flush."""
        return self.flushes or 2 <= depth <= micro_batches


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("1f1b", weight_versions=1, flushes=True, one_backward_each=True),
        Schedule("2bw", weight_versions=2, flushes=False, one_backward_each=True),
        Schedule("gpipe", weight_versions=1, flushes=True, one_backward_each=False),
    )
}
