"""Plans a graph over devices: exactly where it is small, and by bounded searches above."""

from __future__ import annotations

import math
from dataclasses import replace

from memtide._util.sizes import format_size
from memtide.errors import InvalidArgument, ResourceExhausted

from memtide_plan.devices.graph import program
from memtide_plan.devices.graph.answer import DeviceLoad, GraphPlan
from memtide_plan.devices.graph.coarse import coarsened
from memtide_plan.devices.graph.ideals import TooManyIdeals, best_stages
from memtide_plan.devices.graph.linear import linear_stages
from memtide_plan.devices.graph.loads import Loads, Stage, in_flight
from memtide_plan.devices.graph.operators import Graph, Targets, members
from memtide_plan.devices.graph.schedule import Schedules, listed

OBJECTIVES = ("throughput", "latency")
# Operators of a coarse graph whose ideals are searched where those of the whole are too many.
_COARSE_STAGES = (48, 24, 12)
# Operators whose assignment the integer program decides.
_PROGRAM_OPERATORS = 14
# Sums in another order differ by less than that part.
_ROUNDING = 1e-9


def plan_graph(graph: Graph, targets: Targets, objective: str = "throughput") -> GraphPlan:
    """The partition with the most micro-batches a second ("throughput", a pipeline that never runs
    empty) or the shortest pass ("latency", forward passes alone).

    InvalidArgument: an objective or targets that are none. ResourceExhausted: no partition was
    found that fits. NotInstalled: latency needs SciPy."""
    targets.check()
    if objective not in OBJECTIVES:
        raise InvalidArgument(
            f"objective '{objective}' is unknown; there are {' and '.join(OBJECTIVES)}"
        )
    _check_memory(graph, targets)
    return _throughput(graph, targets) if objective == "throughput" else _latency(graph, targets)


def _throughput(graph: Graph, targets: Targets) -> GraphPlan:
    loads = Loads(graph, targets)
    stages, method, bound_s = linear_stages(loads), "cuts of topological orders", loads.bound_s()
    limit_s = math.inf if stages is None else loads.longest_s(stages)
    exact = limit_s <= bound_s * (1 + _ROUNDING)
    if not exact:
        better, method, exact = _by_ideals(loads, limit_s)
        if better is not None and loads.longest_s(better) < limit_s:
            stages = better
    if stages is None:
        raise _does_not_fit(graph, targets, exact)
    seconds = loads.longest_s(stages)
    devices = tuple(
        _device_of_stage(loads, stage, sum(each.replicas for each in stages[at:]))
        for at, stage in enumerate(stages)
    )
    return GraphPlan(
        objective="throughput",
        seconds=seconds,
        bound_s=seconds if exact else bound_s,
        exact=exact,
        method=method,
        devices=devices,
        cut_bytes=sum(device.in_bytes for device in devices),
    )


def _by_ideals(loads: Loads, limit_s: float) -> tuple[list[Stage] | None, str, bool]:
    """The best stages under a limit; how they were searched; and whether no others are better."""
    try:
        return best_stages(loads, limit_s), "all ideals", True
    except TooManyIdeals:
        pass
    size = len(loads.graph)
    for most in _COARSE_STAGES:
        coarse = coarsened(loads.graph, most)
        if len(coarse.graph) == size:
            continue  # As before, it has too many.
        size = len(coarse.graph)
        try:
            joined = best_stages(Loads(coarse.graph, loads.targets), limit_s)
        except TooManyIdeals:
            continue
        stages = [replace(each, part=_union(coarse.parts, each.part)) for each in joined or ()]
        return stages or None, f"all ideals of {size} joined operators", False
    return None, "cuts of topological orders", False


def _device_of_stage(loads: Loads, stage: Stage, devices: int) -> DeviceLoad:
    load = loads.load(stage)
    return DeviceLoad(
        operators=_names(loads.graph, stage.part),
        replicas=stage.replicas,
        compute_s=load.compute_s,
        in_bytes=load.in_bytes,
        out_bytes=load.out_bytes,
        summed_bytes=load.gradient_bytes if stage.replicas > 1 else 0.0,
        memory_bytes=loads.memory(stage.part, in_flight(devices, stage.replicas)),
        seconds=load.seconds,
    )


def _latency(graph: Graph, targets: Targets) -> GraphPlan:
    schedules = Schedules(graph, targets)
    assignment = listed(schedules)
    order = schedules.order(assignment)
    length_s = math.inf if assignment is None else max(schedules.ends(assignment, order))
    bound_s = schedules.bound()
    method, exact = "list scheduling", length_s <= bound_s * (1 + _ROUNDING)
    if not exact:
        is_whole = len(graph) <= _PROGRAM_OPERATORS
        coarse = coarsened(graph, _PROGRAM_OPERATORS)
        if len(coarse.graph) <= _PROGRAM_OPERATORS:
            joined = Schedules(coarse.graph, targets)
            solution = program.solve(joined, min(length_s, sum(joined.seconds + joined.link_s)))
            method = "integer program"
            if is_whole:
                bound_s, exact = max(bound_s, solution.bound_s), solution.is_optimal
            else:
                method = f"integer program of {len(coarse.graph)} joined operators"
            if solution.assignment is not None:
                found = program.expanded(coarse.parts, solution.assignment, len(graph))
                # The program's numbers are those of the coarse graph.
                found_order = (
                    [next(members(coarse.parts[number])) for number in solution.order]
                    if is_whole
                    else schedules.order(found)
                )
                found_s = max(schedules.ends(found, found_order))
                if found_s < length_s:
                    assignment, order, length_s = found, found_order, found_s
    if assignment is None:
        raise _does_not_fit(graph, targets, exact)
    if exact:
        bound_s = length_s
    return _latency_plan(schedules, assignment, order, (length_s, bound_s, exact, method))


def _latency_plan(
    schedules: Schedules,
    assignment: list[int],
    order: list[int],
    found: tuple[float, float, bool, str],
) -> GraphPlan:
    length_s, bound_s, exact, method = found
    ends = schedules.ends(assignment, order)
    loads = Loads(schedules.graph, schedules.targets)
    devices = []
    for device in sorted(set(assignment), key=assignment.index):
        numbers = [number for number in order if assignment[number] == device]
        part = sum(1 << number for number in numbers)
        read = {
            source
            for number in numbers
            for source in schedules.graph.sources[number]
            if assignment[source] != device
        }
        read_elsewhere = {
            number
            for number in numbers
            if any(assignment[reader] != device for reader in schedules.graph.readers[number])
        }
        operators = schedules.graph.operators
        devices.append(
            DeviceLoad(
                operators=tuple(operators[number].name for number in numbers),
                compute_s=sum(schedules.seconds[number] for number in numbers),
                in_bytes=sum(operators[number].output_bytes for number in read),
                out_bytes=sum(operators[number].output_bytes for number in read_elsewhere),
                memory_bytes=loads.memory(part, 1),
                seconds=max(ends[number] for number in numbers),
            )
        )
    return GraphPlan(
        objective="latency",
        seconds=length_s,
        bound_s=bound_s,
        exact=exact,
        method=method,
        devices=tuple(devices),
        cut_bytes=sum(device.in_bytes for device in devices),
    )


def _names(graph: Graph, part: int) -> tuple[str, ...]:
    return tuple(graph.operators[number].name for number in members(part))


def _union(parts: tuple[int, ...], joined: int) -> int:
    union = 0
    for number in members(joined):
        union |= parts[number]
    return union


def _check_memory(graph: Graph, targets: Targets) -> None:
    largest = max(graph.operators, key=lambda operator: operator.state_bytes + operator.saved_bytes)
    states = sum(operator.state_bytes for operator in graph.operators)
    least = max(largest.state_bytes + largest.saved_bytes, states / targets.count)
    if least > targets.memory_bytes:
        raise ResourceExhausted(
            f"the graph does not fit {targets.count} devices of "
            f"{format_size(targets.memory_bytes)}: its states have {format_size(states)}, and "
            f"operator '{largest.name}' needs "
            f"{format_size(largest.state_bytes + largest.saved_bytes)}. A device needs "
            f"{format_size(least)} at least"
        )


def _does_not_fit(graph: Graph, targets: Targets, exact: bool) -> ResourceExhausted:
    states = sum(operator.state_bytes for operator in graph.operators)
    searched = "no partition fits" if exact else "no partition was found that fits"
    return ResourceExhausted(
        f"{searched} {targets.count} devices of {format_size(targets.memory_bytes)}: the states "
        f"have {format_size(states)} in all, beside what operators save for backward. Use larger "
        "devices, or more"
    )
