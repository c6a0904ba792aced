"""A computation as a graph of operators, and the devices over which it is divided.

Sets of operators are integers with a bit for each, so that unions and tests take one operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from memtide.errors import InvalidArgument

# More than that, and what a script exports has been exported at too fine a grain.
MOST_OPERATORS = 20_000


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator, with what it costs in a pass of one micro-batch, or of one inference."""

    name: str
    forward_s: float
    backward_s: float = 0.0  # 0 for inference.
    # Parameters, gradients and what the optimizer has: as long as the plan lives.
    state_bytes: float = 0.0
    # What autograd holds for each micro-batch between its forward and its backward pass.
    saved_bytes: float = 0.0
    # What each device that reads the operator's output receives. Its gradient has as many.
    output_bytes: float = 0.0
    # Gradients of the weights that are trained: replicas of the operator sum them.
    gradient_bytes: float = 0.0

    def compute_s(self) -> float:
        """Both passes."""
        return self.forward_s + self.backward_s


# The fields of an operator but its name.
NUMBERS = tuple(field.name for field in fields(Operator) if field.name != "name")


@dataclass(frozen=True)
class Graph:
    """Operators in a topological order: an edge (u, v) has u < v, and v reads the output of u."""

    operators: tuple[Operator, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """By operator, those that it reads, ascending."""
        return self._neighbours([(reader, source) for source, reader in self.edges])

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By operator, those that read it, ascending."""
        return self._neighbours(self.edges)

    def _neighbours(self, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.operators]
        for one, other in sorted(set(pairs)):
            found[one].append(other)
        return tuple(map(tuple, found))

    def __len__(self) -> int:
        return len(self.operators)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Equal devices, and what a byte between two of them takes."""

    count: int
    memory_bytes: float = math.inf  # That of one device.
    link_bytes_per_s: float
    # Whether a device computes while it sends and receives.
    overlap: bool = False

    def check(self) -> None:
        """Raises InvalidArgument for what no plan can be made for."""
        if self.count < 1:
            raise InvalidArgument(f"there are {self.count} devices; a plan needs one or more")
        for what, value in (
            ("the memory of a device in bytes", self.memory_bytes),
            ("the link between devices in bytes a second", self.link_bytes_per_s),
        ):
            if not value > 0:
                raise InvalidArgument(f"{what} is {value}; it must be more than zero")


def make_graph(operators: Sequence[Operator], edges: Sequence[tuple[str, str]]) -> Graph:
    """The graph of operators in any order, and of edges between their names. InvalidArgument names
    the operator that is unknown, twice there, or in a circle, and the number that is none."""
    if not operators:
        raise InvalidArgument("the graph has no operators; a plan needs one or more")
    if len(operators) > MOST_OPERATORS:
        raise InvalidArgument(
            f"the graph has {len(operators)} operators; a plan is made for {MOST_OPERATORS} at "
            "most: join those that stay together"
        )
    numbers: dict[str, int] = {}
    for number, operator in enumerate(operators):
        if operator.name in numbers:
            raise InvalidArgument(f"two operators have the name '{operator.name}'")
        numbers[operator.name] = number
        _check_numbers(operator)
    for edge in edges:
        for name in edge:
            if name not in numbers:
                raise InvalidArgument(f"an edge has the operator '{name}', which is not there")
    pairs = [(numbers[source], numbers[reader]) for source, reader in edges]
    order = _topological(operators, pairs)
    place = {number: at for at, number in enumerate(order)}
    return Graph(
        tuple(operators[number] for number in order),
        tuple(sorted({(place[source], place[reader]) for source, reader in pairs})),
    )


def members(operators: int) -> Iterator[int]:
    """The numbers of the operators in a set, ascending."""
    while operators:
        least = operators & -operators
        yield least.bit_length() - 1
        operators ^= least


def _check_numbers(operator: Operator) -> None:
    for name in NUMBERS:
        value = getattr(operator, name)
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgument(
                f"operator '{operator.name}': {name} is {value}; times and sizes are finite "
                "numbers, zero or more"
            )


def _topological(operators: Sequence[Operator], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Each operator after those it reads; otherwise as in `operators`."""
    waits = [0] * len(operators)
    readers: list[list[int]] = [[] for _ in operators]
    for source, reader in set(pairs):
        waits[reader] += 1
        readers[source].append(reader)
    # The last of those that are ready comes first, so that chains stay together.
    ready = [number for number in reversed(range(len(operators))) if waits[number] == 0]
    order = []
    while ready:
        number = ready.pop()
        order.append(number)
        for reader in sorted(readers[number], reverse=True):
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    if len(order) < len(operators):
        stuck = next(number for number, count in enumerate(waits) if count > 0)
        raise InvalidArgument(
            f"operator '{operators[stuck].name}' is in a circle of edges, or reads one that is; "
            "a graph of operators has none"
        )
    return order
