"""The assignment of operators to devices with the shortest pass, as an integer program that SciPy's
HiGHS solves.

After Tarnawski et al. (NeurIPS 2020, section 4), but each operator begins by itself, where theirs
has a device run all of its operators as one. The program has the device of each operator (x), which
outputs cross (y), and the order of any two operators of which none waits for the other (o).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memtide.errors import NotInstalled

from memtide_plan.devices.graph.operators import members
from memtide_plan.devices.graph.schedule import Schedules

# The solver ends with its best assignment, and the bound that it has proved so far.
MOST_SECONDS = 10.0


@dataclass(frozen=True)
class Solution:
    """What the solver found; `bound_s` is proved."""

    assignment: list[int] | None
    order: list[int]
    bound_s: float
    is_optimal: bool


def solve(schedules: Schedules, horizon_s: float) -> Solution:
    """The best assignment whose pass takes at most `horizon_s`. NotInstalled: there is no SciPy."""
    return _Program(schedules, horizon_s).solve()


class _Program:
    """Variables are columns of the program; constraints are rows with their sparse values."""

    def __init__(self, schedules: Schedules, horizon_s: float) -> None:
        # Times are parts of the horizon, so that the solver's tolerances fit them.
        self.schedules, self.scale = schedules, horizon_s
        self.count, self.devices = len(schedules.graph), schedules.targets.count
        self.seconds = [value / horizon_s for value in schedules.seconds]
        self.link = [min(value / horizon_s, 2.0) for value in schedules.link_s]
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.integral: list[int] = []
        self.rows: list[tuple[dict[int, float], float]] = []  # Each sum is at least the number.

    def solve(self) -> Solution:
        """Builds the program and runs the solver."""
        try:
            import numpy as np
            from scipy import optimize, sparse
        except ImportError as error:
            raise NotInstalled(
                "latency is planned with SciPy, which is not installed: pip install scipy"
            ) from error
        self._add_variables()
        self._add_precedence()
        self._add_order()
        self._add_memory()
        matrix = sparse.lil_array((len(self.rows), len(self.lower)))
        for number, (row, _) in enumerate(self.rows):
            for column, value in row.items():
                matrix[number, column] = value
        costs = np.zeros(len(self.lower))
        costs[self.end] = 1.0
        result = optimize.milp(
            costs,
            constraints=optimize.LinearConstraint(
                matrix.tocsr(), lb=np.array([least for _, least in self.rows])
            ),
            bounds=optimize.Bounds(np.array(self.lower), np.array(self.upper)),
            integrality=np.array(self.integral),
            options={"time_limit": MOST_SECONDS, "mip_rel_gap": 1e-6},
        )
        return self._solution(result)

    def _solution(self, result: Any) -> Solution:
        bound = getattr(result, "mip_dual_bound", None)
        bound_s = max(0.0, float(bound) * self.scale) if bound is not None else 0.0
        if result.x is None:
            return Solution(None, [], bound_s, False)
        assignment = [
            max(range(self.devices), key=lambda device: result.x[self.x[number][device]])
            for number in range(self.count)
        ]
        # A begin that is later by rounding must not turn an edge around.
        order = sorted(range(self.count), key=lambda v: (round(result.x[self.begin[v]], 9), v))
        return Solution(assignment, order, bound_s, result.status == 0)

    def _variable(self, lower: float, upper: float, *, integral: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.integral.append(int(integral))
        return len(self.lower) - 1

    def _add_variables(self) -> None:
        graph = self.schedules.graph
        from_begin, to_end = [0.0] * self.count, [0.0] * self.count
        for v in range(self.count):
            from_begin[v] = max(
                (from_begin[u] + self.seconds[u] for u in graph.sources[v]), default=0
            )
        for u in reversed(range(self.count)):
            to_end[u] = self.seconds[u] + max((to_end[v] for v in graph.readers[u]), default=0)
        self.end = self._variable(self.schedules.bound() / self.scale, 1.0)
        self.begin = [
            self._variable(from_begin[v], max(from_begin[v], 1.0 - to_end[v]))
            for v in range(self.count)
        ]
        # Devices are alike: operator v is on one of the first v + 1 of them.
        self.x = [
            [self._variable(0, float(device <= v), integral=True) for device in range(self.devices)]
            for v in range(self.count)
        ]
        for v in range(self.count):
            self._equal_one(self.x[v])
            self._at_least({self.end: 1.0, self.begin[v]: -1.0}, to_end[v])
        for device in range(self.devices):
            load = {self.x[v][device]: -self.seconds[v] for v in range(self.count)}
            self._at_least({self.end: 1.0, **load}, 0.0)

    def _add_precedence(self) -> None:
        for u, v in self.schedules.graph.edges:
            crosses = self._variable(0, 1)
            for device in range(self.devices):
                row = {crosses: 1.0, self.x[u][device]: -1.0, self.x[v][device]: 1.0}
                self._at_least(row, 0.0)
            row = {self.begin[v]: 1.0, self.begin[u]: -1.0, crosses: -self.link[u]}
            self._at_least(row, self.seconds[u])

    def _add_order(self) -> None:
        """Two operators on one device do not overlap: a row counts where both are there."""
        reached = _reached(self.schedules.graph.readers)
        for u in range(self.count):
            for v in range(u + 1, self.count):
                if reached[u] >> v & 1:
                    continue
                first = self._variable(0, 1, integral=True)
                far = 1.0 + max(self.seconds[u], self.seconds[v])
                for device in range(self.devices):
                    both = {self.x[u][device]: -far, self.x[v][device]: -far}
                    begins = {self.begin[v]: 1.0, self.begin[u]: -1.0}
                    self._at_least({**begins, first: -far, **both}, self.seconds[u] - 3 * far)
                    begins = {self.begin[u]: 1.0, self.begin[v]: -1.0}
                    self._at_least({**begins, first: far, **both}, self.seconds[v] - 2 * far)

    def _add_memory(self) -> None:
        most = self.schedules.targets.memory_bytes
        if sum(self.schedules.held) <= most:
            return
        for device in range(self.devices):
            row = {
                self.x[v][device]: -held / most
                for v, held in enumerate(self.schedules.held)
                if held > 0
            }
            self._at_least(row, -1.0)

    def _equal_one(self, columns: Sequence[int]) -> None:
        self._at_least({column: 1.0 for column in columns}, 1.0)
        self._at_least({column: -1.0 for column in columns}, -1.0)

    def _at_least(self, row: dict[int, float], least: float) -> None:
        self.rows.append((row, least))


def _reached(readers: Sequence[Sequence[int]]) -> list[int]:
    """By operator, the set of those that wait for it."""
    reached = [0] * len(readers)
    for number in reversed(range(len(readers))):
        for reader in readers[number]:
            reached[number] |= 1 << reader | reached[reader]
    return reached


def expanded(parts: Sequence[int], assignment: Sequence[int], count: int) -> list[int]:
    """The assignment of the operators of a finer graph, whose `parts` are assigned."""
    devices = [0] * count
    for part, device in zip(parts, assignment, strict=True):
        for number in members(part):
            devices[number] = device
    return devices
