"""How long one pass through a graph takes whose operators are on given devices.

A device runs one operator at a time, without a break. An operator's output is on another device
`output_bytes` divided by the link's rate after the operator has ended; links carry any number of
outputs at a time, and devices compute meanwhile. Only forward passes count.
"""

from __future__ import annotations

from collections.abc import Sequence

from memtide_plan.devices.graph.operators import Graph, Targets

# Steps of one operator that the local search may take: some seconds.
_MOST_STEPS = 2_000_000


class Schedules:
    """The schedules of one graph. An assignment has the device of each operator."""

    def __init__(self, graph: Graph, targets: Targets) -> None:
        self.graph, self.targets = graph, targets
        self.seconds = [operator.forward_s for operator in graph.operators]
        self.link_s = [op.output_bytes / targets.link_bytes_per_s for op in graph.operators]
        self.held = [operator.state_bytes + operator.saved_bytes for operator in graph.operators]

    def fits(self, assignment: Sequence[int]) -> bool:
        """Whether no device has more bytes than its memory."""
        held = [0.0] * self.targets.count
        for number, device in enumerate(assignment):
            held[device] += self.held[number]
        return max(held) <= self.targets.memory_bytes

    def ends(self, assignment: Sequence[int], order: Sequence[int]) -> list[float]:
        """When each operator ends, if each device runs its operators in this topological order."""
        free = [0.0] * self.targets.count
        ends = [0.0] * len(order)
        for number in order:
            device = assignment[number]
            begin = free[device]
            for source in self.graph.sources[number]:
                there = ends[source]
                if assignment[source] != device:
                    there += self.link_s[source]
                begin = max(begin, there)
            free[device] = ends[number] = begin + self.seconds[number]
        return ends

    def order(self, assignment: Sequence[int] | None = None) -> list[int]:
        """The operators by the time from their begin to the last end, the longest first; without
        an assignment, each output counts as if it crossed with the odds of a random one."""
        odds = (self.targets.count - 1) / self.targets.count
        rank = [0.0] * len(self.seconds)
        for number in reversed(range(len(rank))):
            after = 0.0
            for reader in self.graph.readers[number]:
                share = odds if assignment is None else assignment[number] != assignment[reader]
                after = max(after, rank[reader] + share * self.link_s[number])
            rank[number] = after + self.seconds[number]
        # Equal ranks are those of operators without time: the graph's order breaks the tie.
        return sorted(range(len(rank)), key=lambda number: (-rank[number], number))

    def length(self, assignment: Sequence[int]) -> float:
        """Seconds of the pass, in the order above."""
        return max(self.ends(assignment, self.order(assignment)))

    def bound(self) -> float:
        """No assignment is faster: the longest path, and an even share of all."""
        to_end = [0.0] * len(self.seconds)
        for number in reversed(range(len(to_end))):
            after = max((to_end[reader] for reader in self.graph.readers[number]), default=0.0)
            to_end[number] = after + self.seconds[number]
        return max(max(to_end), sum(self.seconds) / self.targets.count)


def listed(schedules: Schedules) -> list[int] | None:
    """An assignment by list scheduling: the operator with the longest way to the end goes next, to
    the device where it ends first (Topcuoglu, Hariri and Wu, 2002, without their insertion). Then
    single operators move, as long as the pass becomes shorter. None: it does not fit."""
    assignment = _earliest(schedules)
    if assignment is None:
        assignment = _packed(schedules)
    if assignment is None:
        return None
    choices = [assignment, [0] * len(assignment)]
    moved = [_moved(schedules, choice) for choice in choices if schedules.fits(choice)]
    return min(moved, key=schedules.length)


def _earliest(schedules: Schedules) -> list[int] | None:
    targets, graph = schedules.targets, schedules.graph
    free, held = [0.0] * targets.count, [0.0] * targets.count
    ends = [0.0] * len(graph)
    assignment = [0] * len(graph)
    for number in schedules.order():
        best: tuple[float, int] | None = None
        for device in range(targets.count):
            if held[device] + schedules.held[number] > targets.memory_bytes:
                continue
            begin = free[device]
            for source in graph.sources[number]:
                crosses = assignment[source] != device
                begin = max(begin, ends[source] + (schedules.link_s[source] if crosses else 0.0))
            if best is None or begin < best[0]:
                best = (begin, device)
        if best is None:
            return None
        begin, device = best
        assignment[number] = device
        free[device] = ends[number] = begin + schedules.seconds[number]
        held[device] += schedules.held[number]
    return assignment


def _packed(schedules: Schedules) -> list[int] | None:
    """The largest operator goes first, to the device with the most room."""
    held = [0.0] * schedules.targets.count
    assignment = [0] * len(schedules.held)
    for number in sorted(range(len(assignment)), key=lambda number: -schedules.held[number]):
        device = min(range(len(held)), key=held.__getitem__)
        held[device] += schedules.held[number]
        assignment[number] = device
    return assignment if schedules.fits(assignment) else None


def _moved(schedules: Schedules, assignment: list[int]) -> list[int]:
    best = list(assignment)
    best_s = schedules.length(best)
    left = _MOST_STEPS
    improved = True
    while improved and left > 0:
        improved = False
        for number in range(len(best)):
            for device in range(schedules.targets.count):
                before = best[number]
                if device == before or left <= 0:
                    continue
                left -= len(best)
                best[number] = device
                seconds = schedules.length(best) if schedules.fits(best) else best_s
                if seconds < best_s:
                    best_s, improved = seconds, True
                else:
                    best[number] = before
    return best
