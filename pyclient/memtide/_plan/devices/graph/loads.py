"""What a part of a graph costs the device that has it, in a pipeline that never runs empty.

A device computes the forward and backward passes of its operators, and receives and sends what
crosses to other devices: the output of an operator once to each device that reads it, at the
receiver, and once in all at the sender, as Tarnawski et al. (Efficient Algorithms for Device
Placement of DNN Graph Operators, NeurIPS 2020, section 3) count. In training, gradients take the
same way back. A pipeline ends one micro-batch in the time of its longest load.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtide._plan.devices.graph.operators import Graph, Targets, members


@dataclass(frozen=True)
class Load:
    """One device's, for a micro-batch."""

    compute_s: float
    in_bytes: float
    out_bytes: float
    seconds: float  # With the links.


class Loads:
    """The loads of sets of operators of one graph."""

    def __init__(self, graph: Graph, targets: Targets) -> None:
        self.graph, self.targets = graph, targets
        self.compute_s = [operator.compute_s() for operator in graph.operators]
        # Both directions' bytes of an operator whose output crosses.
        self.crossing = [
            operator.output_bytes * (2 if operator.backward_s > 0 else 1)
            for operator in graph.operators
        ]
        self.readers = [_set(readers) for readers in graph.readers]
        self.sources = [_set(sources) for sources in graph.sources]
        self.all = (1 << len(graph)) - 1

    def seconds(self, compute_s: float, link_bytes: float) -> float:
        """The time of computing and of what crosses."""
        link_s = link_bytes / self.targets.link_bytes_per_s
        return max(compute_s, link_s) if self.targets.overlap else compute_s + link_s

    def load(self, part: int) -> Load:
        """The load of a set of operators, all others being on other devices."""
        compute_s = out_bytes = 0.0
        read = 0
        for number in members(part):
            compute_s += self.compute_s[number]
            read |= self.sources[number]
            if self.readers[number] & ~part:
                out_bytes += self.crossing[number]
        in_bytes = sum(self.crossing[number] for number in members(read & ~part))
        return Load(compute_s, in_bytes, out_bytes, self.seconds(compute_s, in_bytes + out_bytes))

    def memory(self, part: int, in_flight: int) -> float:
        """Bytes of a device that has the set, with that many micro-batches between their passes."""
        return sum(
            self.graph.operators[number].state_bytes
            + in_flight * self.graph.operators[number].saved_bytes
            for number in members(part)
        )


def _set(numbers: tuple[int, ...]) -> int:
    return sum(1 << number for number in numbers)
