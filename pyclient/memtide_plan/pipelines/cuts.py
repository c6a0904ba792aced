"""Cuts a model into stages, by dynamic programming over the layers at which a stage may end."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from memtide_plan.pipelines.costs import StageCosts


@dataclass(frozen=True)
class Limits:
    """Limits that no stage may exceed."""

    load_s: float = math.inf
    memory_bytes: float = math.inf


@dataclass(frozen=True)
class Cut:
    """The stages, as StageCosts.batch_s has them, and the seconds that links add to the pass of a
    micro-batch through all of them."""

    cuts: tuple[int, ...]
    links_s: float


class _Stage:
    """The limits of one stage as functions of its first layer and its end. Both grow with the
    number of layers, but for what the links beside it add."""

    def __init__(self, costs: StageCosts, stage: int, limits: Limits) -> None:
        shape = costs.shape
        flying = shape.schedule.in_flight(shape.micro_batches, shape.depth, stage)
        self.costs, self.limits = costs, limits
        self.crossing = costs.sums.crossing
        self.load = costs.load_before(stage)
        self.resident, self.activations = costs.resident, costs.sums.activations
        # For each byte of a sample that autograd saves, or that comes into the stage.
        self.saved = shape.micro_batch * (1 if shape.recompute else flying)
        self.inputs = shape.micro_batch * flying if shape.recompute else 0
        # For each byte of a sample that crosses the cut before the stage, or the one after it.
        self.before_s = costs.link_s_per_byte(stage - 1)
        self.after_s = costs.link_s_per_byte(stage)
        self.added_s = self.before_s if shape.schedule.flushes else 0.0

    def best_start(
        self, end: int, starts: list[int], links_s: list[float], least_s: float
    ) -> tuple[float, int] | None:
        """The fewest seconds on links with which a stage ends before layer `end`, those of the
        stages before it included, and its start. `starts`: layers in order, with the seconds
        `links_s` before each. None: no start is within the limits. `least_s`: no start has fewer.
        """
        most_s, most_bytes = self.limits.load_s, self.limits.memory_bytes
        repeats, crossing, load = self.costs.repeats(), self.crossing, self.load
        end_s = load[end] + repeats * self.after_s * crossing[end]
        end_bytes = self.resident[end] + self.saved * self.activations[end]
        best = None
        for index in range(bisect_left(starts, end) - 1, -1, -1):
            start = starts[index]
            load_s = end_s - load[start]
            held = end_bytes - self.resident[start] - self.saved * self.activations[start]
            if load_s > most_s or held > most_bytes:
                break  # An earlier start has more of both.
            load_s += repeats * self.before_s * crossing[start]
            if load_s > most_s or held + self.inputs * crossing[start] > most_bytes:
                continue
            sum_s = links_s[index] + self.added_s * crossing[start]
            if best is None or sum_s < best[0]:
                best = (sum_s, start)
                if sum_s <= least_s:
                    break
        return best


def cut(costs: StageCosts, limits: Limits) -> Cut | None:
    """The stages within the limits whose links take the fewest seconds; None: there are none.

    Exact: for each number of stages, and each layer at which the last of them may end, it has the
    best of all starts of this last stage."""
    count, depth = costs.sums.count, costs.shape.depth
    starts, links_s = [0], [0.0]
    came_from: list[dict[int, int]] = []
    for number in range(depth):
        stage = _Stage(costs, number, limits)
        is_last = number == depth - 1
        ends = [count] if is_last else _ends(stage, starts[0], number)
        least_s = min(
            seconds + stage.added_s * stage.crossing[start]
            for start, seconds in zip(starts, links_s, strict=True)
        )
        found = {
            end: best
            for end in ends
            if (best := stage.best_start(end, starts, links_s, least_s)) is not None
        }
        if not found:
            return None
        starts, links_s = list(found), [best[0] for best in found.values()]
        came_from.append({end: best[1] for end, best in found.items()})
    cuts = [count]
    for by_end in reversed(came_from):
        cuts.append(by_end[cuts[-1]])
    return Cut(tuple(reversed(cuts)), links_s[0])


def _ends(stage: _Stage, first_start: int, number: int) -> range:
    """Where a stage may end: each stage after it has a layer, and no more than its limits let all
    of them have. The time counts compute alone, which all stages have alike."""
    costs, depth = stage.costs, stage.costs.shape.depth
    count, after = costs.sums.count, depth - number - 1
    first, last = max(first_start, number) + 1, count - after
    repeats = costs.repeats()
    if repeats and math.isfinite(stage.limits.load_s):
        # A little more, as sums are rounded.
        most_s = after * stage.limits.load_s / repeats * (1 + 1e-9)
        first = max(first, bisect_left(costs.compute_s, costs.compute_s[count] - most_s))
    if math.isfinite(stage.limits.memory_bytes):
        most_bytes = after * stage.limits.memory_bytes * (1 + 1e-9)
        first = max(first, bisect_left(costs.resident, costs.resident[count] - most_bytes))
    return range(first, last + 1)
