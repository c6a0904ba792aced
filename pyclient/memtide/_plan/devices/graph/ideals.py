"""The partition of a graph into the stages of a pipeline whose longest load is least, exactly.

Dynamic programming over ideals, the sets of operators that have all that their members read
(Tarnawski et al., NeurIPS 2020, section 3.1; Piper, NeurIPS 2021, counts memory so): what remains
after the first stages is the complement of an ideal, and a stage is the difference of two. Stages
are numbered from the end: the k-th has k micro-batches between their passes, in a pipeline of one
forward, one backward.

A graph may have exponentially many ideals. The search counts what it looks at, and gives up at a
limit; a branch whose compute or states alone exceed what is known already is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from memtide._plan.devices.graph.loads import Loads
from memtide._plan.devices.graph.operators import members

# Pairs of ideals, each a possible stage: one or two seconds of a processor.
MOST_STAGES = 100_000
# Sums in another order differ by less than that part.
_ROUNDING = 1e-9


class TooManyIdeals(Exception):
    """The graph has more stages to look at than MOST_STAGES."""


def best_stages(
    loads: Loads, below_s: float = math.inf, most_stages: int = MOST_STAGES
) -> list[int] | None:
    """The stages from first to last, as sets, that make the longest load least; None: no partition
    has all loads under `below_s` within the devices' memory. TooManyIdeals."""
    return _Search(loads, below_s, most_stages).run()


class _Search:
    def __init__(self, loads: Loads, below_s: float, most_stages: int) -> None:
        self.loads, self.below_s, self.left = loads, below_s, most_stages
        self.states = [operator.state_bytes for operator in loads.graph.operators]
        self.saved = [operator.saved_bytes for operator in loads.graph.operators]

    def run(self) -> list[int] | None:
        """See best_stages."""
        # By number of stages so far: what is left of the graph, the longest load of the stages
        # after it, and the first of them. A stage is cut off the end of what is left.
        rounds: list[dict[int, tuple[float, int]]] = [{self.loads.all: (0.0, 0)}]
        best_round = None
        for number in range(1, self.loads.targets.count + 1):
            found: dict[int, tuple[float, int]] = {}
            for left, (longest_s, _) in rounds[-1].items():
                if longest_s >= self.below_s:
                    continue
                for stage, seconds in self._stages(left, number):
                    rest = left & ~stage
                    longest = max(longest_s, seconds)
                    if rest not in found or longest < found[rest][0]:
                        found[rest] = (longest, stage)
            if 0 in found and found[0][0] < self.below_s:
                self.below_s, best_round = found[0][0], number
            rounds.append(found)
        return None if best_round is None else _stages_of(rounds, best_round)

    def _stages(self, left: int, in_flight: int) -> Iterator[tuple[int, float]]:
        """The stages that may end the ideal `left`, with their loads."""
        targets, crossing, readers = self.loads.targets, self.loads.crossing, self.loads.readers
        # What the stages before this one compute and hold at most.
        before = targets.count - in_flight
        left_s = sum(self.loads.compute_s[number] for number in members(left))
        left_states = sum(self.states[number] for number in members(left))
        seen = {0}
        # A stage; its compute, bytes held, and bytes sent and received; the operators that it
        # reads, its own included.
        stack = [(0, 0.0, 0.0, 0.0, 0.0, 0)]
        while stack:
            stage, compute_s, states, held, link_bytes, read = stack.pop()
            for number in self._last(left & ~stage):
                larger = stage | 1 << number
                if larger in seen:
                    continue
                seen.add(larger)
                self.left -= 1
                if self.left < 0:
                    raise TooManyIdeals
                more_s = compute_s + self.loads.compute_s[number]
                more_states = states + self.states[number]
                more_held = held + self.states[number] + in_flight * self.saved[number]
                if more_s >= self.below_s or more_held > targets.memory_bytes:
                    continue
                bytes_crossed = link_bytes
                if read & 1 << number:
                    bytes_crossed -= crossing[number]
                if readers[number] & ~larger:
                    bytes_crossed += crossing[number]
                new = self.loads.sources[number] & ~read
                bytes_crossed += sum(crossing[source] for source in members(new))
                stack.append((larger, more_s, more_states, more_held, bytes_crossed, read | new))
                seconds = self.loads.seconds(more_s, bytes_crossed)
                fits_before = left_s - more_s <= before * self.below_s * (
                    1 + _ROUNDING
                ) and left_states - more_states <= before * targets.memory_bytes * (1 + _ROUNDING)
                if seconds < self.below_s and (fits_before or larger == left):
                    yield larger, seconds

    def _last(self, ideal: int) -> list[int]:
        """The operators of an ideal that no other of its operators reads."""
        readers = self.loads.readers
        return [number for number in members(ideal) if not readers[number] & ideal]


def _stages_of(rounds: list[dict[int, tuple[float, int]]], number: int) -> list[int]:
    """The stages of a pipeline of `number` stages that leave nothing."""
    stages, left = [], 0
    for at in range(number, 0, -1):
        stages.append(rounds[at][left][1])
        left |= stages[-1]
    return stages
