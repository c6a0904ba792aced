"""What a part of a graph costs the device that has it, in a pipeline that never runs empty.

A device computes the forward and backward passes of its operators, and receives and sends what
crosses to other devices: the output of an operator once to each device that reads it, at the
receiver, and once in all at the sender, as Tarnawski et al. (Efficient Algorithms for Device
Placement of DNN Graph Operators, NeurIPS 2020, section 3) count. In training, gradients take the
same way back. A pipeline ends one micro-batch in the time of its longest load.

A stage may have replicas on several devices (PipeDream, Narayanan et al., SOSP 2019), each of which
has every r-th micro-batch, so that a load is divided by their number r. After each its own one they
sum the gradients of their weights in a ring, in which a device sends and receives 2 (r - 1) / r of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtide_plan.devices.graph.operators import Graph, Targets, members


@dataclass(frozen=True)
class Stage:
    """A set of operators, and the number of devices of which each has all of them."""

    part: int
    replicas: int = 1


@dataclass(frozen=True)
class Load:
    """A stage's, for a micro-batch."""

    compute_s: float
    in_bytes: float
    out_bytes: float
    gradient_bytes: float
    seconds: float  # With the links; an average of all micro-batches where there are replicas.


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
        self.gradients = [operator.gradient_bytes for operator in graph.operators]
        self.readers = [_set(readers) for readers in graph.readers]
        self.sources = [_set(sources) for sources in graph.sources]
        self.all = (1 << len(graph)) - 1

    def seconds(
        self, compute_s: float, link_bytes: float, gradient_bytes: float, replicas: int
    ) -> float:
        """The time of computing, of what crosses and of the sums of replicas."""
        link_bytes += 2 * (replicas - 1) / replicas * gradient_bytes
        link_s = link_bytes / self.targets.link_bytes_per_s
        both_s = max(compute_s, link_s) if self.targets.overlap else compute_s + link_s
        return both_s / replicas

    def load(self, stage: Stage) -> Load:
        """The load of a stage, all other operators being on other devices."""
        compute_s = out_bytes = gradients = 0.0
        read = 0
        for number in members(stage.part):
            compute_s += self.compute_s[number]
            gradients += self.gradients[number]
            read |= self.sources[number]
            if self.readers[number] & ~stage.part:
                out_bytes += self.crossing[number]
        in_bytes = sum(self.crossing[number] for number in members(read & ~stage.part))
        seconds = self.seconds(compute_s, in_bytes + out_bytes, gradients, stage.replicas)
        return Load(compute_s, in_bytes, out_bytes, gradients, seconds)

    def longest_s(self, stages: Sequence[Stage]) -> float:
        """The longest load of a pipeline of these stages."""
        return max(self.load(stage).seconds for stage in stages)

    def bound_s(self) -> float:
        """No partition has a shorter longest load: an even share of all compute, and for each
        operator what it takes by itself, on as many devices as suit it best."""
        even_s = sum(self.compute_s) / self.targets.count
        counts = range(1, self.targets.count + 1)
        alone = (
            min(self.seconds(compute_s, 0.0, gradients, replicas) for replicas in counts)
            for compute_s, gradients in zip(self.compute_s, self.gradients, strict=True)
            if compute_s > even_s
        )
        return max([even_s, *alone])

    def memory(self, part: int, in_flight: int) -> float:
        """Bytes of a device that has the set, with that many micro-batches between their passes."""
        return sum(
            self.graph.operators[number].state_bytes
            + in_flight * self.graph.operators[number].saved_bytes
            for number in members(part)
        )


def in_flight(devices: int, replicas: int) -> int:
    """The micro-batches between their passes that each replica of a stage has, in a pipeline of
    one forward, one backward; `devices`: those of the stage and of all after it."""
    return -(-devices // replicas)


def _set(numbers: tuple[int, ...]) -> int:
    return sum(1 << number for number in numbers)
