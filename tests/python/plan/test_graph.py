"""Partitions of graphs of operators are those of an exhaustive search, within memory; wrong graphs
are named."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from harness import REPOSITORY
from memtide._cli.main import main
from memtide.errors import InvalidArgument, NotFound, ResourceExhausted
from memtide_plan.devices.graph.coarse import coarsened
from memtide_plan.devices.graph.file import as_document, load_graph, parse_graph
from memtide_plan.devices.graph.linear import linear_stages
from memtide_plan.devices.graph.loads import Loads
from memtide_plan.devices.graph.operators import Graph, Operator, Targets, make_graph, members
from memtide_plan.devices.graph.plan import plan_graph
from memtide_plan.devices.graph.schedule import Schedules, listed


def _graph(numbers: random.Random, count: int) -> Graph:
    def number(most: float) -> float:
        return numbers.choice([0.0, 0.3, 1.0]) * numbers.uniform(0.1, most)

    operators = [
        Operator(
            name=f"o{n}",
            forward_s=0.05 + number(1),
            backward_s=number(2),
            state_bytes=number(10),
            saved_bytes=number(4),
            output_bytes=number(6),
            gradient_bytes=number(3),
        )
        for n in range(count)
    ]
    odds = numbers.choice([0.2, 0.4, 0.7])
    edges = [
        (f"o{u}", f"o{v}")
        for u, v in itertools.combinations(range(count), 2)
        if numbers.random() < odds
    ]
    numbers.shuffle(operators)
    return make_graph(operators, edges)


def _targets(numbers: random.Random, graph: Graph) -> Targets:
    states = sum(operator.state_bytes for operator in graph.operators)
    count = numbers.randint(2, 4)
    return Targets(
        count=count,
        memory_bytes=numbers.choice([math.inf, 1 + 1.6 * states / count, 1 + states]),
        link_bytes_per_s=numbers.choice([1.0, 5.0, 50.0]),
        overlap=numbers.random() < 0.5,
    )


def _least_load(graph: Graph, targets: Targets, most_replicas: int = 99) -> float:
    """Over all assignments of operators to stages in which no edge goes back, and all numbers of
    replicas of each stage, by formulas of its own: the shortest longest load that fits; infinity
    if none does."""
    best = math.inf
    for stages in itertools.product(range(targets.count), repeat=len(graph)):
        depth = max(stages) + 1
        if len(set(stages)) < depth or any(stages[u] > stages[v] for u, v in graph.edges):
            continue
        most = min(most_replicas, targets.count - depth + 1)
        for replicas in itertools.product(range(1, most + 1), repeat=depth):
            if sum(replicas) <= targets.count:
                best = min(best, _longest_load(graph, targets, stages, replicas))
    return best


def _longest_load(
    graph: Graph, targets: Targets, stages: tuple[int, ...], replicas: tuple[int, ...]
) -> float:
    depth = len(replicas)
    loads = []
    for stage in range(depth):
        inside = [n for n in range(len(graph)) if stages[n] == stage]
        devices = sum(replicas[stage:])
        in_flight = math.ceil(devices / replicas[stage])
        held = sum(
            graph.operators[n].state_bytes + in_flight * graph.operators[n].saved_bytes
            for n in inside
        )
        if held > targets.memory_bytes:
            return math.inf
        crossed = 0.0
        for n, operator in enumerate(graph.operators):
            readers = {stages[v] for u, v in graph.edges if u == n} - {stages[n]}
            size = operator.output_bytes * (2 if operator.backward_s else 1)
            crossed += size * (stage in readers or (stages[n] == stage and bool(readers)))
        # Each replica has one of r micro-batches in a row, and then the sum of all gradients.
        ring = sum(graph.operators[n].gradient_bytes for n in inside)
        crossed += 2 * ring * (replicas[stage] - 1) / replicas[stage]
        link_s = crossed / targets.link_bytes_per_s
        compute_s = sum(graph.operators[n].compute_s() for n in inside)
        load = max(compute_s, link_s) if targets.overlap else compute_s + link_s
        loads.append(load / replicas[stage])
    return max(loads)


def _shortest_pass(graph: Graph, targets: Targets) -> float:
    """Over all assignments and all orders in which operators may begin."""
    count = len(graph)
    link = [operator.output_bytes / targets.link_bytes_per_s for operator in graph.operators]
    best = math.inf
    ends, on = [0.0] * count, [0] * count

    def place(done: int, free: list[float], held: list[float], last: float) -> None:
        nonlocal best
        if done == (1 << count) - 1:
            best = last
            return
        for n in range(count):
            if done >> n & 1 or any(not done >> u & 1 for u in graph.sources[n]):
                continue
            operator = graph.operators[n]
            unused = False
            for device in range(targets.count):
                if free[device] == 0 and held[device] == 0:
                    if unused:
                        continue  # Empty devices are alike.
                    unused = True
                more = held[device] + operator.state_bytes + operator.saved_bytes
                if more > targets.memory_bytes:
                    continue
                there = [ends[u] + (on[u] != device) * link[u] for u in graph.sources[n]]
                ends[n] = max([free[device], *there]) + operator.forward_s
                if max(last, ends[n]) >= best:
                    continue
                on[n] = device
                place(
                    done | 1 << n,
                    [*free[:device], ends[n], *free[device + 1 :]],
                    [*held[:device], more, *held[device + 1 :]],
                    max(last, ends[n]),
                )

    place(0, [0.0] * targets.count, [0.0] * targets.count, 0.0)
    return best


def _check_partition(graph: Graph, targets: Targets, plan: Any) -> None:
    names = [name for device in plan.devices for name in device.operators]
    assert sorted(names) == sorted(operator.name for operator in graph.operators)
    assert sum(device.replicas for device in plan.devices) <= targets.count
    assert all(device.memory_bytes <= targets.memory_bytes for device in plan.devices)


@pytest.mark.parametrize("seed", range(4))
def test_throughput_is_that_of_the_best_of_all_partitions(seed: int) -> None:
    numbers = random.Random(seed)
    fitting = faster = mixed = 0
    for _ in range(60):
        graph = _graph(numbers, numbers.randint(1, 6))
        targets = _targets(numbers, graph)
        best = _least_load(graph, targets)
        if best == math.inf:
            with pytest.raises(ResourceExhausted, match="fit"):
                plan_graph(graph, targets)
            continue
        fitting += 1
        plan = plan_graph(graph, targets)
        assert plan.exact
        assert plan.seconds == pytest.approx(best, rel=1e-9)
        assert max(device.seconds for device in plan.devices) == plan.seconds
        assert plan.seconds >= Loads(graph, targets).bound_s() * (1 - 1e-9)
        _check_partition(graph, targets, plan)
        faster += best < _least_load(graph, targets, most_replicas=1) * (1 - 1e-9)
        mixed += len(plan.devices) > 1 and max(device.replicas for device in plan.devices) > 1
    assert fitting > 30
    assert faster > 5
    assert mixed > 1


@pytest.mark.parametrize("seed", range(4))
def test_latency_is_that_of_the_best_of_all_schedules(seed: int) -> None:
    numbers = random.Random(seed)
    fitting = 0
    for _ in range(20):
        graph = _graph(numbers, numbers.randint(1, 6))
        targets = _targets(numbers, graph)
        best = _shortest_pass(graph, targets)
        if best == math.inf:
            with pytest.raises(ResourceExhausted, match="fit"):
                plan_graph(graph, targets, "latency")
            continue
        fitting += 1
        plan = plan_graph(graph, targets, "latency")
        assert plan.exact
        assert plan.seconds == pytest.approx(best, rel=1e-5)
        _check_partition(graph, targets, plan)
    assert fitting > 10


def test_heuristics_are_never_better_than_the_best_and_most_often_near() -> None:
    numbers = random.Random(5)
    cuts, lists = [], []
    for _ in range(60):
        graph = _graph(numbers, numbers.randint(3, 6))
        targets = _targets(numbers, graph)
        loads, schedules = Loads(graph, targets), Schedules(graph, targets)
        if (stages := linear_stages(loads)) is not None:
            cuts.append(loads.longest_s(stages) / _least_load(graph, targets))
        if (assignment := listed(schedules)) is not None:
            lists.append(schedules.length(assignment) / _shortest_pass(graph, targets))
    for found in (cuts, lists):
        assert min(found) >= 1 - 1e-9
        assert sum(ratio < 1.1 for ratio in found) > 0.7 * len(found)
    print(f"cuts: at most {max(cuts):.3f} of the best; lists: {max(lists):.3f}")


def test_joining_skips_leaves_a_chain_and_each_operator_once() -> None:
    # Blocks of a branch with a skip, as those of a transformer.
    operators, edges = [Operator(name="in", forward_s=1)], []
    for block in range(6):
        names = [f"{block}.a", f"{block}.b", f"{block}.sum"]
        operators += [Operator(name=name, forward_s=1, output_bytes=8) for name in names]
        before = operators[-4].name
        edges += [(before, names[0]), (names[0], names[1]), (names[1], names[2])]
        edges += [(before, names[2])]
    graph = make_graph(operators, edges)
    coarse = coarsened(graph, 6)
    assert len(coarse.graph) == 6
    together = [number for part in coarse.parts for number in members(part)]
    assert sorted(together) == list(range(len(graph)))
    assert sum(op.forward_s for op in coarse.graph.operators) == 19
    assert all(len(readers) <= 1 for readers in coarse.graph.readers)


def test_a_large_graph_is_planned_near_its_bound() -> None:
    numbers = random.Random(1)
    operators = [
        Operator(
            name=f"o{n}", forward_s=numbers.uniform(0.5, 1), output_bytes=1, gradient_bytes=200
        )
        for n in range(600)
    ]
    # Three sources each, within 30 operators: far too many ideals.
    edges = [
        (f"o{source}", f"o{n}")
        for n in range(30, 600)
        for source in numbers.sample(range(n - 30, n), 3)
    ]
    graph = make_graph(operators, edges)
    targets = Targets(count=4, link_bytes_per_s=100)
    plan = plan_graph(graph, targets)
    assert not plan.exact
    assert plan.bound_s == pytest.approx(sum(op.forward_s for op in operators) / 4)
    assert plan.bound_s < plan.seconds < 1.05 * plan.bound_s
    _check_partition(graph, targets, plan)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    graph = _graph(random.Random(3), 7)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(as_document(graph)))
    read = load_graph(path)
    assert set(read.operators) == set(graph.operators)

    def named(graph: Graph) -> set[tuple[str, str]]:
        names = [operator.name for operator in graph.operators]
        return {(names[u], names[v]) for u, v in graph.edges}

    assert named(read) == named(graph)
    with pytest.raises(NotFound, match="no-graph.json cannot be read"):
        load_graph(tmp_path / "no-graph.json")


def test_gradients_are_an_eighth_of_the_states_of_a_backward_pass_if_the_file_does_not_say() -> (
    None
):
    trained = {"forward_s": 1, "backward_s": 2, "state_bytes": 16e6}
    operators = [
        {"name": "default", **trained},
        {"name": "frozen", **trained, "gradient_bytes": 0},
        {"name": "inference", "forward_s": 1, "state_bytes": 16e6},
    ]
    graph = parse_graph({"format": "memtide graph 1", "operators": operators})
    assert [operator.gradient_bytes for operator in graph.operators] == [2e6, 0, 0]


def test_what_computes_long_with_few_weights_is_replicated() -> None:
    # As in convolutional networks: 90% of the compute have 10% of the weights.
    path = REPOSITORY / "docs" / "plan" / "narrowing.json"
    plan = plan_graph(load_graph(path), Targets(count=4, link_bytes_per_s=10e9))
    wide, dense = plan.as_json()["devices"]
    assert (wide["replicas"], dense["replicas"]) == (3, 1)
    assert wide["operators"] == ["images", "wide", "narrow"]
    summed = (1.2e8 + 1.2e8) / 8
    assert (wide["summed_bytes"], dense["summed_bytes"]) == (summed, 0)
    link_s = (2 * 6.4e6 + 2 * 2 / 3 * summed) / 10e9
    assert wide["seconds"] == pytest.approx((0.181 + link_s) / 3)
    # Four micro-batches are between their passes, two at most on each of three devices.
    assert wide["memory_bytes"] == 2.4e8 + math.ceil(4 / 3) * (4e8 + 1e8)
    assert plan.lines()[2].startswith("devices 0 to 2, replicas: ")
    assert plan.lines()[3].startswith("device 3: ")


def test_inference_is_replicated_without_sums() -> None:
    operators = [Operator(name=f"o{n}", forward_s=n, state_bytes=5, output_bytes=9) for n in (1, 4)]
    graph = make_graph(operators, [("o1", "o4")])
    plan = plan_graph(graph, Targets(count=3, link_bytes_per_s=1))
    assert plan.exact
    assert plan.seconds == pytest.approx(5 / 3)
    # Where memory is short, the heavier operator has replicas, and the link decides.
    small = plan_graph(graph, Targets(count=3, memory_bytes=5, link_bytes_per_s=1e3))
    assert [device.replicas for device in small.devices] == [1, 2]
    assert small.seconds == pytest.approx((4 + 9e-3) / 2)


_ONE = {"name": "a", "forward_s": 1}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], "is an object with"),
        ({"format": "memtide graph 1", "operators": []}, "no operators"),
        ({"format": "memtide graph 1", "nodes": []}, "no 'nodes'"),
        ({"operators": [{"name": "a"}]}, "'a' has no forward_s"),
        ({"operators": [{"name": "a", "forward_s": -1}]}, "'a': forward_s is -1"),
        ({"operators": [{"name": "a", "forward_s": "1 s"}]}, "must be a number"),
        ({"operators": [{"name": "a", "forward_s": 1, "flop": 3}]}, "'a' has 'flop'"),
        ({"operators": [_ONE, _ONE]}, "two operators have the name 'a'"),
        ({"operators": [_ONE], "edges": [["a", "b"]]}, "'b', which is not there"),
        ({"operators": [_ONE], "edges": [["a", "a"]]}, "'a' is in a circle"),
        ({"operators": [_ONE], "edges": ["a"]}, "edge 0 is 'a'"),
    ],
)
def test_a_wrong_graph_is_named(document: Any, error: str) -> None:
    if isinstance(document, dict):
        document = {"format": "memtide graph 1", **document}
    with pytest.raises(InvalidArgument, match=error):
        parse_graph(document)


def test_wrong_devices_and_objectives_are_named() -> None:
    graph = make_graph([Operator(name="a", forward_s=1, state_bytes=2**30)], [])
    with pytest.raises(InvalidArgument, match="there are 0 devices"):
        plan_graph(graph, Targets(count=0, link_bytes_per_s=1))
    with pytest.raises(InvalidArgument, match="throughput and latency"):
        plan_graph(graph, Targets(count=1, link_bytes_per_s=1), "speed")
    with pytest.raises(ResourceExhausted, match="A device needs 1.00 GiB at least"):
        plan_graph(graph, Targets(count=2, memory_bytes=2**20, link_bytes_per_s=1))


def test_the_command_prints_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.json"
    operators = [
        Operator(
            name=name,
            forward_s=1,
            backward_s=2,
            state_bytes=2**20,
            output_bytes=1e6,
            gradient_bytes=9e6,
        )
        for name in ("first", "second")
    ]
    path.write_text(json.dumps(as_document(make_graph(operators, [("first", "second")]))))
    command = ["plan", "--graph", str(path), "--devices", "2"]
    assert main([*command, "--between", "1MB/s"]) == 0
    printed = capsys.readouterr().out
    # Two bytes of each pass cross a link of 1 MB/s, which takes 2 s beside the 3 s of computing.
    assert "bound 5 s; no partition is faster" in printed
    assert "device 1: 5 s, computes 3 s" in printed
    assert main([*command, "--between", "1MB/s", "--overlap", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seconds"] == 3
    assert [device["operators"] for device in document["devices"]] == [["first"], ["second"]]
    assert main(command) == 2
    assert "needs the link between its devices" in capsys.readouterr().err
    assert main([*command, "--between", "1MB/s", "--device-memory", "1MiB"]) == 0
    assert main([*command, "--between", "1MB/s", "--device-memory", "1000KiB"]) == 1
    assert "A device needs 1.00 MiB at least" in capsys.readouterr().err
    assert main(["plan", "--graph", str(tmp_path / "model.py"), "--devices", "2"]) == 2
    assert "Name a GPU" in capsys.readouterr().err
