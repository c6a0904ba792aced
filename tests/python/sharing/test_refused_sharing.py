"""Cases that `memtide run --share` cannot share are refused before a step, with the reason."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide_methods.sharing.shared_layers import SharedLayers
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines reported while layers of `model.blocks` are to share until the second step."""
    lines: list[str] = []
    shared = SharedLayers("model.blocks", 2, lines.append)
    runtimes.start(FakeClient(), Observer(), adopt_everything=True, first_phases=[shared])
    yield lines
    runtimes.stop()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.blocks(x)
        return scores


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_sharded_layers_are_refused(one_rank: None, lines: list[str]) -> None:
    model = Model()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    with pytest.raises(SystemExit, match="--share model.blocks: FSDP has sharded these layers"):
        torch.optim.SGD(model.parameters(), lr=0.1)
    assert not lines


def test_a_communication_hook_is_refused_at_the_first_step(
    one_rank: None, lines: list[str]
) -> None:
    model = Model()
    ranks = DistributedDataParallel(model)
    ranks.register_comm_hook(None, lambda _, bucket: bucket.buffer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert lines == ["3 layers of model.blocks share their parameters"]
    with pytest.raises(SystemExit, match="DistributedDataParallel has a communication hook"):
        optimizer.step()


def test_two_optimizers_of_the_layers_are_refused_where_they_are_to_be_delinked(
    lines: list[str],
) -> None:
    model = Model()
    weights = [block.weight for block in model.blocks]
    first = torch.optim.SGD(weights, lr=0.1)
    with pytest.raises(SystemExit, match="several optimizers have parameters of the layers"):
        torch.optim.SGD([model.blocks[0].bias], lr=0.1)
    assert first.param_groups[0]["params"] == weights[:1]


def test_each_model_with_the_path_shares_and_is_delinked_after_its_own_steps(
    lines: list[str],
) -> None:
    for round_number in (1, 2):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert len(optimizer.param_groups[0]["params"]) == 2
        _step(model, optimizer)
        assert len(optimizer.param_groups[0]["params"]) == 2
        _step(model, optimizer)
        assert len(optimizer.param_groups[0]["params"]) == 6
        _step(model, optimizer)
        assert len(lines) == 2 * round_number


def test_what_layers_give_up_is_freed(lines: list[str]) -> None:
    model = Model()
    given_up = weakref.ref(model.blocks[1].weight)
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert given_up() is None
    assert lines
