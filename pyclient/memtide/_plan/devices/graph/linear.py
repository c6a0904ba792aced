"""Partitions of graphs that are too large for all ideals: stages are intervals of an order.

The order is topological, so each interval is a stage that a pipeline can have. The cuts of one
order are exact, by dynamic programming (the linearization of Tarnawski et al., NeurIPS 2020,
section 5.1.2); several orders are tried. Then single operators move between neighbouring stages as
long as the longest load falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from memtide._plan.devices.graph.loads import Loads
from memtide._plan.devices.graph.operators import Graph, members

# The positions of an order at which a stage may end: with n of them, about n * n / devices
# intervals are looked at.
_MOST_CUTS = 200
# Moves that the local search looks at.
_MOST_MOVES = 20_000
# How long a stage may compute, over an even share and the heaviest operator: more is looked at only
# where links or memory demand it.
_LIMITS = (1.0, 4.0, math.inf)
_Interval = tuple[int, float, float, float]  # End, seconds, states, and saved bytes.


def linear_stages(loads: Loads) -> list[int] | None:
    """The stages from first to last, as sets; None: no order's cuts fit the devices' memory."""
    best: tuple[float, list[int]] | None = None
    for order in _orders(loads.graph):
        stages = _cut(loads, order)
        if stages is None:
            continue
        stages = _moved(loads, stages)
        seconds = longest_s(loads, stages)
        if best is None or seconds < best[0]:
            best = (seconds, stages)
    return None if best is None else best[1]


def longest_s(loads: Loads, stages: list[int]) -> float:
    """The longest load of a pipeline of these stages."""
    return max(loads.load(stage).seconds for stage in stages)


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


def _cut(loads: Loads, order: list[int]) -> list[int] | None:
    """The cuts of one order that make the longest load least."""
    ends = _ends(loads, order)
    even_s = sum(loads.compute_s) / loads.targets.count + max(loads.compute_s)
    for factor in _LIMITS:
        limit_s = factor * even_s
        intervals = {
            start: _intervals(loads, order, start, ends, limit_s) for start in [0, *ends[:-1]]
        }
        stages = _best_cuts(loads, order, intervals)
        # A stage that computes longer than the limit has a longer load, too.
        if stages is not None and longest_s(loads, stages) <= limit_s:
            return stages
    return None


def _ends(loads: Loads, order: list[int]) -> list[int]:
    """Positions of the order before which a stage may end: all, or those of the fewest bytes among
    neighbours."""
    count = len(order)
    if count <= _MOST_CUTS:
        return list(range(1, count + 1))
    crossing = _crossing(loads, order)
    width = -(-count // _MOST_CUTS)
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
    compute_s = states = saved = in_bytes = out_bytes = 0.0
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
            seconds = loads.seconds(compute_s, in_bytes + out_bytes)
            found.append((at + 1, seconds, states, saved))
    return found


def _best_cuts(
    loads: Loads, order: list[int], intervals: dict[int, list[_Interval]]
) -> list[int] | None:
    """The division of the order into intervals with the shortest longest load."""
    count, memory_bytes = len(order), loads.targets.memory_bytes
    # By start, from the end of the order: the longest load of the stages from there, and the end
    # of the first of them; with k stages from there, that one has k micro-batches in flight.
    best: list[dict[int, tuple[float, int]]] = [{count: (0.0, count)}]
    for in_flight in range(1, loads.targets.count + 1):
        found: dict[int, tuple[float, int]] = {}
        for start, ends in intervals.items():
            for end, seconds, states, saved in ends:
                if end not in best[-1] or states + in_flight * saved > memory_bytes:
                    continue
                longest = max(seconds, best[-1][end][0])
                if start not in found or longest < found[start][0]:
                    found[start] = (longest, end)
        best.append(found)
    whole = [number for number, found in enumerate(best) if number and 0 in found]
    if not whole:
        return None
    stages, start = [], 0
    for number in range(min(whole, key=lambda number: best[number][0][0]), 0, -1):
        end = best[number][start][1]
        stages.append(sum(1 << operator for operator in order[start:end]))
        start = end
    return stages


def _moved(loads: Loads, stages: list[int]) -> list[int]:
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
                changed = list(stages)
                changed[longest] &= ~(1 << number)
                changed[to] |= 1 << number
                if changed[longest] == 0 or not _fits(loads, changed, to):
                    continue
                if max(loads.load(changed[at]).seconds for at in (longest, to)) < seconds[longest]:
                    stages, improved = changed, True
                    break
            if improved:
                break
    return stages


def _moves(loads: Loads, stages: list[int], stage: int) -> list[tuple[int, list[int]]]:
    """Operators of a stage that may be in the next one, or in the one before."""
    part = stages[stage]
    moves = []
    ends: list[tuple[int, Callable[[int], int]]] = [
        (stage + 1, loads.readers.__getitem__),
        (stage - 1, loads.sources.__getitem__),
    ]
    for to, beside in ends:
        if 0 <= to < len(stages):
            moves.append((to, [number for number in members(part) if not beside(number) & part]))
    return moves


def _fits(loads: Loads, stages: list[int], to: int) -> bool:
    in_flight = len(stages) - to
    return loads.memory(stages[to], in_flight) <= loads.targets.memory_bytes
