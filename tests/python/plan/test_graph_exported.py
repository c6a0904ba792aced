"""The graph of a module: its operators' FLOPs, bytes and weights are those of its definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from memtide._plan_file.training import States
from memtide.errors import InvalidArgument, NotFound
from memtide_plan.devices.graph.exported import graph_of, graph_of_file
from memtide_plan.devices.graph.operators import Targets
from memtide_plan.devices.graph.plan import plan_graph
from memtide_plan.estimate.work import Rates

_RATES = Rates(flop_per_s=1e9, attention_flop_per_s=1e9, memory_bytes_per_s=1e30, call_s=0.0)


class _Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = torch.nn.Linear(64, 128)
        self.right = torch.nn.Linear(64, 128)
        self.right.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x)


def test_times_are_flops_by_a_rate_and_states_those_of_parameters() -> None:
    states = States(weight=2, gradient=2, optimizer=8)
    graph = graph_of(_Branches(), (torch.zeros(16, 64),), _RATES, states=states)
    flop = 2 * (2 * 16 * 64 * 128)
    assert sum(op.forward_s for op in graph.operators) == pytest.approx(flop / 1e9)
    assert sum(op.backward_s for op in graph.operators) == pytest.approx(2 * flop / 1e9)
    trained, frozen = 64 * 128 + 2 * 128, 64 * 128
    held = sum(op.state_bytes for op in graph.operators)
    assert held == trained * 12 + frozen * 2
    assert sum(op.gradient_bytes for op in graph.operators) == trained * 2
    (last,) = [op for number, op in enumerate(graph.operators) if not graph.readers[number]]
    assert last.output_bytes == 16 * 128 * 4
    # Each branch can have a device of its own.
    plan = plan_graph(graph, Targets(count=2, link_bytes_per_s=1e12))
    assert plan.seconds == pytest.approx(3 * flop / 2 / 1e9, rel=1e-3)


def test_inference_has_weights_alone() -> None:
    graph = graph_of(_Branches(), (torch.zeros(16, 64),), _RATES)
    assert sum(op.backward_s for op in graph.operators) == 0
    assert sum(op.state_bytes for op in graph.operators) == 4 * 2 * (64 * 128 + 128)
    assert sum(op.saved_bytes for op in graph.operators) == 0
    assert sum(op.gradient_bytes for op in graph.operators) == 0


def test_a_module_that_torch_cannot_export_is_named() -> None:
    class Depends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(InvalidArgument, match="cannot see the operators of Depends"):
        graph_of(Depends(), (torch.zeros(3),), _RATES)


def test_a_file_has_a_function_that_returns_a_module_and_its_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "def example():\n"
        "    return torch.nn.Linear(64, 128), (torch.zeros(16, 64),)\n"
    )
    graph = graph_of_file(path, _RATES, None)
    assert [op.forward_s for op in graph.operators] == [pytest.approx(2 * 16 * 64 * 128 / 1e9)]
    path.write_text("example = 1\n")
    with pytest.raises(InvalidArgument, match="has no function example()"):
        graph_of_file(path, _RATES, None)
    path.write_text("def example():\n    return 1\n")
    with pytest.raises(InvalidArgument, match="returns int"):
        graph_of_file(path, _RATES, None)
    with pytest.raises(NotFound, match="cannot be read"):
        graph_of_file(tmp_path / "missing.py", _RATES, None)
