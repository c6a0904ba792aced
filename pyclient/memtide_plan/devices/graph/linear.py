"""Partitions of graphs that are too large for all ideals: stages are intervals of an order.

The order is topological, so each interval is a stage that a pipeline can have. The cuts of one
order are exact, by dynamic programming (the linearization of Tarnawski et al., NeurIPS 2020,
section 5.1.2); several orders are tried. Then single operators move between neighbouring stages as
long as the longest load falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from memtide_plan.devices.graph.loads import Loads, Stage, in_flight
from memtide_plan.devices.graph.operators import Graph, members

# The positions of an order at which a stage may end: with n of them, about n * n / devices
# intervals are looked at.
_MOST_CUTS = 200
# The same where a stage may have replicas: it may then have the most of an order.
_MOST_REPLICATED_CUTS = 24
# Moves that the local search looks at.
_MOST_MOVES = 20_000
# How long a stage may compute, over an even share and the heaviest operator: more is looked at only
# where links or memory demand it.
_LIMITS = (1.0, 4.0, math.inf)


class _Interval(NamedTuple):
    end: int
    compute_s: float
    link_bytes: float
    gradients: float
    states: float
    saved: float


def linear_stages(loads: Loads) -> list[Stage] | None:
    """The stages from first to last; None: no order's cuts fit the devices' memory."""
    choices = []
    for order in _orders(loads.graph):
        for stages in (_cut(loads, order), _replicated(loads, order)):
            if stages is not None:
                choices.append(_moved(loads, stages))
    return min(choices, key=loads.longest_s, default=None)


def _orders(graph: Graph) -> list[list[int]]:
    """Topological orders: that of the graph, which ends a branch before it begins the next one;
    by distance from the start; and by distance from the end."""
    count = len(graph)
    from_start, to_end = [0] * count, [0] * count
    for number in range(count):
        from_start[number] = max((from_start[u] + 1 for u in graph.sources[number]), default=0)
    for number in reversed(range(count)):
        to_end[number] = max((to_end[v] + 1 for v in graph.readers[number]), default=0)
    numbers = list(range(count))
    orders = [
        numbers,
        sorted(numbers, key=lambda number: (from_start[number], number)),
        sorted(numbers, key=lambda number: (-to_end[number], number)),
    ]
    return [order for at, order in enumerate(orders) if order not in orders[:at]]


def _cut(loads: Loads, order: list[int]) -> list[Stage] | None:
    """The cuts of one order that make the longest load least, with a device for each stage."""
    ends = _ends(loads, order, _MOST_CUTS)
    even_s = sum(loads.compute_s) / loads.targets.count + max(loads.compute_s)
    for factor in _LIMITS:
        limit_s = factor * even_s
        intervals = {
            start: _intervals(loads, order, start, ends, limit_s) for start in [0, *ends[:-1]]
        }
        stages = _best_cuts(loads, order, intervals, 1)
        # A stage that computes longer than the limit has a longer load, too.
        if stages is not None and loads.longest_s(stages) <= limit_s:
            return stages
    return None


def _replicated(loads: Loads, order: list[int]) -> list[Stage] | None:
    """The same, with any number of devices for each stage, at fewer positions."""
    if loads.targets.count == 1:
        return None
    ends = _ends(loads, order, _MOST_REPLICATED_CUTS)
    intervals = {
        start: _intervals(loads, order, start, ends, math.inf) for start in [0, *ends[:-1]]
    }
    return _best_cuts(loads, order, intervals, loads.targets.count)


def _ends(loads: Loads, order: list[int], most: int) -> list[int]:
    """Positions of the order before which a stage may end: all, or those of the fewest bytes among
    neighbours, `most` at most."""
    count = len(order)
    if count <= most:
        return list(range(1, count + 1))
    crossing = _crossing(loads, order)
    width = -(-count // most)
    groups = (range(begin, min(begin + width, count)) for begin in range(1, count, width))
    return [min(group, key=lambda at: (crossing[at], at)) for group in groups] + [count]


def _crossing(loads: Loads, order: list[int]) -> list[float]:
    """Bytes that cross a cut before each position."""
    place = {number: at for at, number in enumerate(order)}
    change = [0.0] * (len(order) + 1)
    for number in order:
        readers = loads.graph.readers[number]
        if readers:
            change[place[number] + 1] += loads.crossing[number]
            change[max(place[reader] for reader in readers) + 1] -= loads.crossing[number]
    crossing, now = [], 0.0
    for at in range(len(order) + 1):
        now += change[at]
        crossing.append(now)
    return crossing


def _intervals(
    loads: Loads, order: list[int], start: int, ends: list[int], limit_s: float
) -> list[_Interval]:
    """The stages that begin at a position and compute no longer than the limit."""
    operators, crossing = loads.graph.operators, loads.crossing
    found: list[_Interval] = []
    compute_s = states = saved = gradients = in_bytes = out_bytes = 0.0
    inside: set[int] = set()
    read: set[int] = set()
    # By operator of the interval: its readers outside.
    waiting: dict[int, int] = {}
    is_end = set(ends)
    for at in range(start, len(order)):
        number = order[at]
        inside.add(number)
        compute_s += loads.compute_s[number]
        states += operators[number].state_bytes
        saved += operators[number].saved_bytes
        gradients += operators[number].gradient_bytes
        if compute_s > limit_s or states > loads.targets.memory_bytes:
            break
        waiting[number] = len(loads.graph.readers[number])
        if waiting[number]:
            out_bytes += crossing[number]
        for source in loads.graph.sources[number]:
            if source in inside:
                waiting[source] -= 1
                if waiting[source] == 0:
                    out_bytes -= crossing[source]
            elif source not in read:
                read.add(source)
                in_bytes += crossing[source]
        if at + 1 in is_end:
            link_bytes = in_bytes + out_bytes
            found.append(_Interval(at + 1, compute_s, link_bytes, gradients, states, saved))
    return found


def _best_cuts(
    loads: Loads, order: list[int], intervals: dict[int, list[_Interval]], most_replicas: int
) -> list[Stage] | None:
    """The division of the order into intervals with the shortest longest load."""
    count, memory_bytes = len(order), loads.targets.memory_bytes
    # By the number of devices and by start, from the end of the order: the longest load of the
    # stages from there, and the end and the replicas of the first of them.
    best: list[dict[int, tuple[float, int, int]]] = [{count: (0.0, count, 0)}]
    for devices in range(1, loads.targets.count + 1):
        found: dict[int, tuple[float, int, int]] = {}
        for start, ends in intervals.items():
            for each in ends:
                for replicas in range(1, min(most_replicas, devices) + 1):
                    after = best[devices - replicas].get(each.end)
                    held = each.states + in_flight(devices, replicas) * each.saved
                    if after is None or held > memory_bytes:
                        continue
                    own = loads.seconds(each.compute_s, each.link_bytes, each.gradients, replicas)
                    if start not in found or max(own, after[0]) < found[start][0]:
                        found[start] = (max(own, after[0]), each.end, replicas)
        best.append(found)
    whole = [number for number, found in enumerate(best) if number and 0 in found]
    if not whole:
        return None
    stages, start, devices = [], 0, min(whole, key=lambda number: best[number][0][0])
    while devices > 0:
        _, end, replicas = best[devices][start]
        stages.append(Stage(sum(1 << operator for operator in order[start:end]), replicas))
        start, devices = end, devices - replicas
    return stages


def _moved(loads: Loads, stages: list[Stage]) -> list[Stage]:
    """Moves operators from the stage with the longest load to the next one or the one before, as
    long as the longer load of the two falls."""
    stages = list(stages)
    left = _MOST_MOVES
    improved = True
    while improved and left > 0:
        improved = False
        seconds = [loads.load(stage).seconds for stage in stages]
        longest = max(range(len(stages)), key=lambda at: seconds[at])
        for to, movable in _moves(loads, stages, longest):
            for number in movable:
                left -= 1
                less = replace(stages[longest], part=stages[longest].part & ~(1 << number))
                more = replace(stages[to], part=stages[to].part | 1 << number)
                if not less.part or not _fits(loads, more, stages[to:]):
                    continue
                if loads.longest_s([less, more]) < seconds[longest]:
                    stages[longest], stages[to], improved = less, more, True
                    break
            if improved:
                break
    return stages


def _moves(loads: Loads, stages: list[Stage], stage: int) -> list[tuple[int, list[int]]]:
    """Operators of a stage that may be in the next one, or in the one before."""
    part = stages[stage].part
    moves = []
    ends: list[tuple[int, Callable[[int], int]]] = [
        (stage + 1, loads.readers.__getitem__),
        (stage - 1, loads.sources.__getitem__),
    ]
    for to, beside in ends:
        if 0 <= to < len(stages):
            moves.append((to, [number for number in members(part) if not beside(number) & part]))
    return moves


def _fits(loads: Loads, stage: Stage, following: list[Stage]) -> bool:
    """Whether a stage has room on its devices; `following`: those from its own to the last."""
    devices = sum(each.replicas for each in following)
    held = loads.memory(stage.part, in_flight(devices, stage.replicas))
    return held <= loads.targets.memory_bytes
