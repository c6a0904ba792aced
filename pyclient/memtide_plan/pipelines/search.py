"""Searches the fastest plan within the memory of the devices.

Width, depth, layout, micro-batch, recomputation and schedule are enumerated, as in the paper; the
stages of each Shape are cut exactly. A Shape whose lower bound is no faster than the best plan so
far is not cut, so that few are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtide_plan.pipelines.costs import Shape, StageCosts, Sums
from memtide_plan.pipelines.cuts import Cut, Limits, cut
from memtide_plan.pipelines.inputs import Devices
from memtide_plan.pipelines.schedules import Schedule
from memtide_plan.pipelines.topology import LAYOUTS, links_of

# A cut that is better by less than this part of the best is not searched for.
_TOLERANCE = 1e-7


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The caller's decisions; None: the search decides."""

    width: int | None = None
    depth: int | None = None
    micro_batch: int | None = None
    recompute: bool | None = None


def shapes(
    layers: int, devices: int, batch: int, fixed: Fixed, schedules: Sequence[Schedule]
) -> Iterator[Shape]:
    """All shapes for a batch of that many samples; simpler ones first."""
    for width in _choices(fixed.width, _divisors(batch)):
        for depth in _choices(fixed.depth, list(range(1, layers + 1))):
            if width * depth > devices or depth > layers or batch % width:
                continue
            for micro_batch in _choices(fixed.micro_batch, _divisors(batch // width)):
                count, rest = divmod(batch // width, micro_batch)
                if rest:
                    continue
                for recompute in (False, True) if fixed.recompute is None else (fixed.recompute,):
                    for schedule in schedules:
                        if not schedule.admits(count, depth):
                            continue
                        for layout in LAYOUTS if min(width, depth) > 1 else LAYOUTS[:1]:
                            yield Shape(
                                width, depth, layout, micro_batch, count, recompute, schedule
                            )


def fastest(
    sums: Sums, devices: Devices, candidates: Sequence[Shape]
) -> tuple[StageCosts, Cut, float] | None:
    """The costs, the cut and the seconds of a batch; None: no shape fits the devices' memory."""
    memory_bytes = devices.memory_bytes()
    bounds: list[tuple[float, int]] = []
    for number, shape in enumerate(candidates):
        if _least_bytes(sums, shape) <= memory_bytes:
            bounds.append((_least_s(sums, devices, shape), number))
    best: tuple[StageCosts, Cut, float] | None = None
    for bound_s, number in sorted(bounds):
        best_s = best[2] if best else math.inf
        if bound_s >= best_s:
            break
        shape = candidates[number]
        links = links_of(devices, shape.layout, shape.width, shape.depth)
        costs = StageCosts(sums, shape, links)
        found = _fastest_cut(costs, memory_bytes, best_s)
        if found:
            best = (costs, *found)
    return best


def least_memory(
    sums: Sums, devices: Devices, candidates: Sequence[Shape]
) -> tuple[StageCosts, Cut, float]:
    """The shape and cut whose largest device needs the fewest bytes, and these.
    REQUIRES: there are candidates."""
    # Width and layout matter only for the number of micro-batches, and these up to the depth.
    alike: dict[tuple[object, ...], Shape] = {}
    for shape in candidates:
        flying = shape.schedule.in_flight(shape.micro_batches, shape.depth, 0)
        versions = shape.schedule.weight_versions
        key = (shape.depth, shape.micro_batch, flying, shape.recompute, versions)
        alike.setdefault(key, shape)
    best: tuple[StageCosts, Cut, float] | None = None
    for bound, _, shape in sorted(
        (_least_bytes(sums, shape), number, shape) for number, shape in enumerate(alike.values())
    ):
        if best and bound >= best[2]:
            break
        links = links_of(devices, shape.layout, shape.width, shape.depth)
        costs = StageCosts(sums, shape, links)
        found = _smallest_cut(costs, bound, best[2] if best else math.inf)
        if found:
            best = (costs, *found)
    assert best is not None
    return best


def _fastest_cut(costs: StageCosts, memory_bytes: int, below_s: float) -> tuple[Cut, float] | None:
    """The cut with the fewest seconds of a batch, if they are fewer than `below_s`.

    A batch takes the longest load of a stage, and with a flush what a micro-batch takes through all
    stages, of which only the links differ among cuts. For a limit of the load, `cut` has the fewest
    seconds on links. An interval of limits cannot have a better cut than the seconds on links at
    its upper end with the load at its lower end: intervals are halved until none is better."""
    flushes = costs.shape.schedule.flushes
    through_s = costs.compute_s[-1] if flushes else 0.0
    best: tuple[Cut, float] | None = None
    # Lower and upper end of the loads, and the fewest seconds on links that any cut in it has.
    intervals = [(_least_load_s(costs), below_s - through_s, 0.0)]
    while intervals:
        low_s, high_s, links_s = intervals.pop()
        below = best[1] if best else below_s
        high_s = min(high_s, below - through_s - links_s)
        # Loads may be zero, with one micro-batch and a flush: the seconds of a batch are the scale.
        if low_s >= high_s or (below < math.inf and high_s - low_s <= _TOLERANCE * below):
            continue
        is_first = best is None
        limit_s = high_s if is_first else (low_s + high_s) / 2
        found = cut(costs, Limits(limit_s * (1 - _TOLERANCE / 2), memory_bytes))
        if found is None:
            if not is_first:
                intervals.append((limit_s, high_s, links_s))
            continue
        batch_s = costs.batch_s(found.cuts)
        if batch_s < below:
            best = (found, batch_s)
        if not is_first and found.links_s > links_s:
            intervals.append((limit_s, high_s, links_s))
        load_s = batch_s - through_s - found.links_s
        intervals.append((low_s, min(load_s, limit_s), found.links_s))
    return best


def _smallest_cut(costs: StageCosts, low: float, below: float) -> tuple[Cut, float] | None:
    """The cut whose largest device has the fewest bytes, from `low` on, if they are fewer than
    `below`; and these bytes."""
    best: tuple[Cut, float] | None = None
    high = below
    while low < high * (1 - _TOLERANCE):
        limit = (low + high) / 2 if best else high * (1 - _TOLERANCE)
        found = cut(costs, Limits(memory_bytes=limit))
        if found is None:
            if best is None:
                return None
            low = limit
        else:
            spans = enumerate(zip(found.cuts, found.cuts[1:], strict=False))
            high = max(costs.memory(stage, *span).total() for stage, span in spans)
            best = (found, high)
    return best


def _least_bytes(sums: Sums, shape: Shape) -> float:
    """No cut has a largest device with fewer bytes."""
    versions = shape.schedule.weight_versions
    resident = versions * sums.weights[-1] + sums.gradients[-1] + sums.states[-1]
    all_layers = resident + shape.micro_batch * sums.activations[-1]
    return max(all_layers / shape.depth, sums.layer_bytes(versions, shape.micro_batch))


def _least_s(sums: Sums, devices: Devices, shape: Shape) -> float:
    """No cut has a batch with fewer seconds: that of equal loads without links, and that of the
    layer that computes longest."""
    schedule = shape.schedule
    repeats = shape.micro_batches - (1 if schedule.flushes else 0)
    all_s, longest_s = sums.compute_bounds(shape.micro_batch, shape.recompute)
    rate = max(devices.inside_bytes_per_s(), devices.across_bytes_per_s())
    exchange_s = 2 * (shape.width - 1) / shape.width / rate * sums.gradients[-1]
    load_s = max((repeats * all_s + exchange_s) / shape.depth, repeats * longest_s)
    return load_s + (all_s if schedule.flushes else 0.0)


def _least_load_s(costs: StageCosts) -> float:
    """No cut has a longest stage with fewer seconds than equal loads without links are."""
    return min(costs.load_before(n)[-1] for n in range(costs.shape.depth)) / costs.shape.depth


def _choices(fixed: int | None, free: list[int]) -> list[int]:
    return free if fixed is None else [fixed]


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
