"""Joins operators of a large graph, so that fewer remain for an exact search.

An operator joins its only reader, or the only one that it reads. Neither can make a circle: any
other path between the two would begin at another reader, or end at another source. Branches of a
model with skips between its blocks shrink so into a chain.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from memtide_plan.devices.graph.operators import Graph, Operator, make_graph


@dataclass(frozen=True)
class Coarse:
    """A graph of joined operators, and which operators of the finer graph each of them has."""

    graph: Graph
    parts: tuple[int, ...]


def coarsened(graph: Graph, most: int) -> Coarse:
    """The graph with at most that many operators, if joining can do so. The lightest pair is joined
    first, so that operators stay even."""
    joined = _Joined(graph)
    while len(joined.parts) > most and joined.join_lightest():
        pass
    return joined.coarse()


class _Joined:
    def __init__(self, graph: Graph) -> None:
        self.fine = graph
        self.parts = {number: 1 << number for number in range(len(graph))}
        self.seconds = {number: op.compute_s() for number, op in enumerate(graph.operators)}
        self.sources = {number: set(graph.sources[number]) for number in self.parts}
        self.readers = {number: set(graph.readers[number]) for number in self.parts}
        # The last operator of each part.
        self.last = {number: number for number in self.parts}
        self.pairs: list[tuple[float, int, int]] = []
        for number in self.parts:
            self._push(number)

    def join_lightest(self) -> bool:
        """Joins one pair; False: there is none."""
        while self.pairs:
            seconds, source, reader = heapq.heappop(self.pairs)
            if not self._is_pair(source, reader):
                continue
            if seconds != self.seconds[source] + self.seconds[reader]:
                continue  # One of them has grown, and is in the heap with its new weight.
            self._join(source, reader)
            return True
        return False

    def coarse(self) -> Coarse:
        """What has been joined, as a graph."""
        names = {number: self.fine.operators[self.last[number]].name for number in self.parts}
        edges = [(names[u], names[v]) for u in self.parts for v in self.readers[u]]
        by_name = {names[number]: part for number, part in self.parts.items()}
        graph = make_graph([self._operator(number, names[number]) for number in self.parts], edges)
        return Coarse(graph, tuple(by_name[operator.name] for operator in graph.operators))

    def _operator(self, number: int, name: str) -> Operator:
        """What a part costs as one operator. Where a part with several readers has operators that
        are read outside beside its last one, its output has the bytes of all of them."""
        inside = self.parts[number]
        fine = [self.fine.operators[at] for at in range(len(self.fine)) if inside >> at & 1]
        output_bytes = sum(
            self.fine.operators[at].output_bytes
            for at in range(len(self.fine))
            if inside >> at & 1 and any(not inside >> v & 1 for v in self.fine.readers[at])
        )
        return Operator(
            name=name,
            forward_s=sum(operator.forward_s for operator in fine),
            backward_s=sum(operator.backward_s for operator in fine),
            state_bytes=sum(operator.state_bytes for operator in fine),
            saved_bytes=sum(operator.saved_bytes for operator in fine),
            gradient_bytes=sum(operator.gradient_bytes for operator in fine),
            output_bytes=output_bytes,
        )

    def _is_pair(self, source: int, reader: int) -> bool:
        if source not in self.parts or reader not in self.readers[source]:
            return False
        return len(self.readers[source]) == 1 or len(self.sources[reader]) == 1

    def _push(self, number: int) -> None:
        pairs = [(number, reader) for reader in self.readers[number]]
        pairs += [(source, number) for source in self.sources[number]]
        for source, reader in pairs:
            if self._is_pair(source, reader):
                seconds = self.seconds[source] + self.seconds[reader]
                heapq.heappush(self.pairs, (seconds, source, reader))

    def _join(self, source: int, reader: int) -> None:
        """`source` takes in `reader`."""
        self.parts[source] |= self.parts.pop(reader)
        self.seconds[source] += self.seconds.pop(reader)
        self.last[source] = self.last.pop(reader)
        self.readers[source] = (self.readers[source] - {reader}) | self.readers.pop(reader)
        self.sources[source] |= self.sources.pop(reader) - {source}
        for other in self.readers[source]:
            self.sources[other] = (self.sources[other] - {reader}) | {source}
        for other in self.sources[source]:
            self.readers[other] = (self.readers[other] - {reader}) | {source}
        self._push(source)
