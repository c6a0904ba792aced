"""The partition of a graph into the stages of a pipeline whose longest load is least, exactly.

Dynamic programming over ideals, the sets of operators that have all that their members read, and
over devices (Tarnawski et al., NeurIPS 2020, section 3.1; Piper, NeurIPS 2021, counts memory so).
What remains after the first stages is the complement of an ideal, and a stage is the difference of
two, on one device or in replicas on several. Stages are cut off the end, so that the devices after
one are known, and with them the micro-batches between its passes.

A graph may have exponentially many ideals. The search counts what it looks at, and gives up at a
limit; a branch whose compute or states alone exceed what is known already is not looked at.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

from memtide_plan.devices.graph.loads import Loads, Stage, in_flight
from memtide_plan.devices.graph.operators import members

# Pairs of ideals, each a possible stage: one or two seconds of a processor.
MOST_STAGES = 100_000
# Sums in another order differ by less than that part.
_ROUNDING = 1e-9


class TooManyIdeals(Exception):
    """The graph has more stages to look at than MOST_STAGES."""


def best_stages(
    loads: Loads, below_s: float = math.inf, most_stages: int = MOST_STAGES
) -> list[Stage] | None:
    """The stages from first to last that make the longest load least; None: no partition has all
    loads under `below_s` within the devices' memory. TooManyIdeals."""
    return _Search(loads, below_s, most_stages).run()


class _Part(NamedTuple):
    """A set of operators, and sums over them."""

    operators: int = 0
    compute_s: float = 0.0
    states: float = 0.0
    saved: float = 0.0
    gradients: float = 0.0
    link_bytes: float = 0.0  # Sent to and received from other stages.
    read: int = 0  # The operators that the set reads, its own included.


class _Search:
    def __init__(self, loads: Loads, below_s: float, most_stages: int) -> None:
        self.loads, self.below_s, self.left = loads, below_s, most_stages

    def run(self) -> list[Stage] | None:
        """See best_stages."""
        # By number of devices so far, and by what is left of the graph: the longest load of the
        # stages after it, and the first of them. A stage is cut off the end of what is left.
        rounds: list[dict[int, tuple[float, Stage]]] = [
            {} for _ in range(self.loads.targets.count + 1)
        ]
        rounds[0][self.loads.all] = (0.0, Stage(0))
        # By what is left: the longest load so far. The same with more devices is of no use, as
        # fewer remain, and more micro-batches are between their passes.
        shortest: dict[int, float] = {}
        best_devices = None
        for devices, found in enumerate(rounds[:-1]):
            for left, (longest_s, _) in found.items():
                if longest_s >= min(self.below_s, shortest.get(left, math.inf)):
                    continue
                shortest[left] = longest_s
                for stage, seconds in self._stages(left, devices):
                    rest, longest = left & ~stage.part, max(longest_s, seconds)
                    after = rounds[devices + stage.replicas]
                    if rest not in after or longest < after[rest][0]:
                        after[rest] = (longest, stage)
                    if rest == 0 and longest < self.below_s:
                        self.below_s, best_devices = longest, devices + stage.replicas
        return None if best_devices is None else _stages_of(rounds, best_devices)

    def _stages(self, left: int, devices: int) -> Iterator[tuple[Stage, float]]:
        """The stages that may end the ideal `left`, with their loads; `devices` are those of the
        stages after them."""
        whole = functools.reduce(self._with, reversed([*members(left)]), _Part())
        seen = {0}
        stack = [_Part()]
        while stack:
            part = stack.pop()
            for number in self._last(left & ~part.operators):
                if part.operators | 1 << number in seen:
                    continue
                larger = self._with(part, number)
                seen.add(larger.operators)
                self.left -= 1
                if self.left < 0:
                    raise TooManyIdeals
                most = self.loads.targets.count - devices
                if larger.compute_s < most * self.below_s and self._fits(larger, devices, most):
                    stack.append(larger)
                    yield from self._replicas(larger, whole, devices)

    def _replicas(self, part: _Part, left: _Part, devices: int) -> Iterator[tuple[Stage, float]]:
        """The stages of these operators, each with more replicas and a shorter load than the one
        before, whose devices leave enough to what is left."""
        targets, least_s = self.loads.targets, math.inf
        for replicas in range(1, targets.count - devices + 1):
            before = (targets.count - devices - replicas) * (1 + _ROUNDING)
            if part.operators != left.operators and (
                left.compute_s - part.compute_s > before * self.below_s
                or left.states - part.states > before * targets.memory_bytes
            ):
                return
            seconds = self.loads.seconds(part.compute_s, part.link_bytes, part.gradients, replicas)
            if seconds < min(self.below_s, least_s) and self._fits(part, devices, replicas):
                least_s = seconds
                yield Stage(part.operators, replicas), seconds

    def _fits(self, part: _Part, devices: int, replicas: int) -> bool:
        held = part.states + in_flight(devices + replicas, replicas) * part.saved
        return held <= self.loads.targets.memory_bytes

    def _with(self, part: _Part, number: int) -> _Part:
        """The set with one operator more, of which all readers are in it or in later stages."""
        loads, operator = self.loads, self.loads.graph.operators[number]
        operators = part.operators | 1 << number
        link_bytes = part.link_bytes
        if part.read & 1 << number:
            link_bytes -= loads.crossing[number]
        if loads.readers[number] & ~operators:
            link_bytes += loads.crossing[number]
        new = loads.sources[number] & ~part.read
        link_bytes += sum(loads.crossing[source] for source in members(new))
        return _Part(
            operators,
            part.compute_s + loads.compute_s[number],
            part.states + operator.state_bytes,
            part.saved + operator.saved_bytes,
            part.gradients + operator.gradient_bytes,
            link_bytes,
            part.read | new,
        )

    def _last(self, ideal: int) -> list[int]:
        """The operators of an ideal that no other of its operators reads."""
        readers = self.loads.readers
        return [number for number in members(ideal) if not readers[number] & ideal]


def _stages_of(rounds: list[dict[int, tuple[float, Stage]]], devices: int) -> list[Stage]:
    """The stages of a pipeline of that many devices that leave nothing."""
    stages, left = [], 0
    while devices > 0:
        stage = rounds[devices][left][1]
        stages.append(stage)
        left |= stage.part
        devices -= stage.replicas
    return stages
