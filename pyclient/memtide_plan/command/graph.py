"""`memtide plan --graph`: the partition of a graph of operators over devices."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from memtide.errors import UsageError

from memtide_plan.ask import units

if TYPE_CHECKING:
    from memtide._plan_file.machine import Machine
    from memtide._plan_file.training import States

    from memtide_plan.devices.graph.operators import Graph, Targets

_THROUGHPUT, _LATENCY = "throughput", "latency"


def add_graph_options(plan: argparse._ActionsContainer) -> None:
    """Adds the options that only a graph has. --devices, --device-memory, what names a machine, and
    --json are those of all plans."""
    graph = plan.add_argument_group("graph of operators")
    graph.add_argument(
        "--graph",
        type=Path,
        metavar="FILE",
        help="divide operators over --devices: those of a graph in JSON, or those of the model and "
        "inputs that the function example() of a .py file returns, by torch.export",
    )
    graph.add_argument(
        "--objective",
        choices=(_THROUGHPUT, _LATENCY),
        default=_THROUGHPUT,
        help="the most micro-batches a second of a training pipeline, or the shortest pass of one "
        f"inference (default: {_THROUGHPUT})",
    )
    graph.add_argument(
        "--between", metavar="RATE", help="the link between two devices, for --graph: 25GB/s"
    )
    graph.add_argument(
        "--overlap", action="store_true", help="with --graph: links work while devices compute"
    )


def run_graph(
    flags: argparse.Namespace, machine: Machine | None, states: States
) -> Callable[[], int]:
    """Prints the plan of --graph. `machine`: the one that the options name, if any; `states`: those
    that a training has. REQUIRES: flags.graph is set."""
    from memtide_plan.devices.graph.plan import plan_graph

    graph = _graph(flags, machine, states)
    planned = plan_graph(graph, _targets(flags, machine), flags.objective)
    if flags.json:
        print(json.dumps(planned.as_json(), indent=1))
    else:
        from memtide._util.console import make_console

        console = make_console()
        for line in planned.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return lambda: 0


def _targets(flags: argparse.Namespace, machine: Machine | None) -> Targets:
    from memtide_plan.devices.graph.operators import Targets
    from memtide_plan.estimate.pools import device_pool

    named = machine.devices if machine is not None else 1
    devices = named if flags.devices is None else flags.devices
    link = math.inf if machine is None else machine.exchange_bytes_per_s()
    if flags.between is not None:
        link = units.rate("--between", flags.between)
    elif machine is None and devices > 1:
        raise UsageError("--graph needs the link between its devices: --between 25GB/s")
    memory = math.inf if machine is None else device_pool(machine)
    if flags.device_memory is not None:
        memory = units.size("--device-memory", flags.device_memory)
    return Targets(count=devices, memory_bytes=memory, link_bytes_per_s=link, overlap=flags.overlap)


def _graph(flags: argparse.Namespace, machine: Machine | None, states: States) -> Graph:
    from memtide_plan.devices.graph.file import load_graph

    if flags.graph.suffix != ".py":
        return load_graph(flags.graph)
    if machine is None:
        raise UsageError(
            f"how fast are the operators of {flags.graph}? Name a GPU: --gpu rtx4090 "
            "--host-memory 64GiB"
        )
    from memtide_plan.devices.graph.exported import graph_of_file
    from memtide_plan.estimate.work import Rates

    rates = Rates.of(machine.device, flags.compute_type or "bfloat16")
    return graph_of_file(flags.graph, rates, states if flags.objective == _THROUGHPUT else None)
