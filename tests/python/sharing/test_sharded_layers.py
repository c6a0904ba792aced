"""Layers that share under `fully_shard` train as tied parameters do there in plain torch, and part
in place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_client import FakeClient
from harness import SCRIPTS, Cli
from memtide._launch import deferred_start, fully_sharded
from memtide._sharing.layers import delink, share_layers
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.shared_layers import SharedLayers
from memtide.errors import FailedPrecondition
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import fully_shard

_SCRIPT = SCRIPTS / "sharing_sharded.py"
_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
_SHARED = ("--share=model.blocks", "--delink-at-step=3")


@pytest.mark.parametrize("kind", ["model", "parts"])
def test_sharded_layers_have_the_bits_of_tied_ones_and_then_of_a_new_model(
    kind: str, cli: Cli, tmp_path: Path
) -> None:
    plain, called, ran = (tmp_path / name for name in ("plain", "called", "ran"))
    launch = ["-m", "torch.distributed.run", *_TORCHRUN, _SCRIPT, kind]
    cli.python(*launch, SHARING="torch", RESULT=plain, OMP_NUM_THREADS=1).check()
    cli.python(*launch, SHARING="calls", RESULT=called, OMP_NUM_THREADS=1).check()
    pools = ("--host-pool=32MiB", "--ssd-pool=256MiB", f"--ssd-dir={tmp_path}", "--chunk-size=2MiB")
    ranks = (*pools, *_SHARED, "torchrun", *_TORCHRUN, _SCRIPT, kind)
    done = cli.memtide("run", *ranks, RESULT=ran, OMP_NUM_THREADS=1).check()
    assert "4 layers of model.blocks share their parameters" in done.err
    for rank in "01":
        one, by_calls, by_run = (
            json.loads(Path(f"{file}{rank}").read_text(encoding="utf-8"))
            for file in (plain, called, ran)
        )
        assert by_calls == one
        assert by_run == one


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def _sharing(mesh: Any, kind: str) -> tuple[Any, list[Any]]:
    model: Any = Model()
    blocks = list(model.blocks)
    share_layers(blocks)
    if kind == "layers":
        fully_shard(blocks, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, blocks


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.ones(2, 8)).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _address(tensor: Any) -> int:
    """`data_ptr` would count as a write: torch would copy."""
    return torch._C._data_address(tensor._local_tensor)


@pytest.mark.parametrize("kind", ["model", "layers"])
def test_to_delink_copies_no_shard_before_it_is_written(kind: str, mesh: Any) -> None:
    model, blocks = _sharing(mesh, kind)
    optimizer = _sgd(model)
    _step(model, optimizer)
    delink(blocks, optimizer)
    weights = [block[0].weight for block in blocks]
    model(torch.ones(2, 8)).sum().backward()
    assert len({_address(weight) for weight in weights}) == 1
    assert len({_address(optimizer.state[w]["momentum_buffer"]) for w in weights}) == 1
    optimizer.step()
    assert len({_address(weight) for weight in weights}) == 3
    assert len({_address(optimizer.state[w]["momentum_buffer"]) for w in weights}) == 3


def test_each_delinked_layer_is_gathered_alone_with_what_the_script_has_set(mesh: Any) -> None:
    model, blocks = _sharing(mesh, "layers")
    blocks[0].set_gradient_divide_factor(4.0)
    blocks[0].set_reshard_after_forward(reshard_after_forward=False)
    _step(model, _sgd(model))
    delink(blocks)
    blocks[1].unshard()
    whole = [type(block[0].weight) is nn.Parameter for block in blocks]
    assert whole == [False, True, False]
    blocks[1].reshard()
    model.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    alone = [block[0].weight.grad.full_tensor() for block in blocks]
    blocks[2].set_gradient_divide_factor(1.0)
    model.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    now = [block[0].weight.grad.full_tensor() for block in blocks]
    assert torch.equal(now[1], alone[1]) and torch.equal(now[2], 4 * alone[2])
    # The whole parameters stay after a forward pass, and a checkpoint has shards nevertheless.
    model(torch.ones(2, 8))
    assert all(type(block[0].weight) is nn.Parameter for block in blocks)
    assert all(hasattr(value, "full_tensor") for value in model.state_dict().values())


@pytest.mark.parametrize("kind", ["model", "layers"])
def test_layers_may_part_before_the_first_step_and_load_a_checkpoint_each(
    kind: str, mesh: Any
) -> None:
    model, blocks = _sharing(mesh, kind)
    delink(blocks)
    plain = Model()
    fully_shard(plain, mesh=mesh)
    loaded = {name: value.clone() for name, value in plain.state_dict().items()}
    model.load_state_dict(loaded, assign=True)
    expected = [_step(plain, optimizer) for optimizer in [_sgd(plain)] for _ in range(3)]
    assert [_step(model, optimizer) for optimizer in [_sgd(model)] for _ in range(3)] == expected


def test_layers_that_are_sharded_alone_are_refused_with_the_way_to_shard_them(mesh: Any) -> None:
    model: Any = Model()
    share_layers(list(model.blocks))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match=re.escape("use fully_shard([module_a, module_b])")):
        model(torch.ones(2, 8))
    with pytest.raises(FailedPrecondition, match=re.escape("fully_shard([*layers])")):
        delink(list(model.blocks))


def test_sharded_layers_cannot_begin_to_share(mesh: Any) -> None:
    model: Any = Model()
    fully_shard(model, mesh=mesh)
    with pytest.raises(FailedPrecondition, match="FSDP has sharded these layers"):
        share_layers(list(model.blocks))


def test_layers_do_not_part_while_gradients_wait_for_their_reduction(mesh: Any) -> None:
    model, blocks = _sharing(mesh, "layers")
    model.set_requires_gradient_sync(requires_gradient_sync=False)
    model(torch.ones(2, 8)).sum().backward()
    with pytest.raises(FailedPrecondition, match="gradients of the layers have not been reduced"):
        delink(blocks)
    assert blocks[1][0].weight is blocks[0][0].weight
    model.set_requires_gradient_sync(requires_gradient_sync=True)
    model(torch.ones(2, 8)).sum().backward()
    delink(blocks)
    assert blocks[1][0].weight is not blocks[0][0].weight


def test_fully_sharded_data_parallel_shares_but_does_not_part(mesh: Any) -> None:
    def wrapped(model: Any) -> tuple[Any, torch.optim.Optimizer]:
        ranks = fsdp.FullyShardedDataParallel(
            model, use_orig_params=True, device_id=torch.device("cpu")
        )
        return ranks, _sgd(ranks)

    model, tied = Model(), Model()
    share_layers(list(model.blocks))
    tied.blocks = nn.ModuleList([tied.blocks[0]] * 3)
    (ranks, optimizer), (tied_ranks, tied_optimizer) = wrapped(model), wrapped(tied)
    losses = [_step(ranks, optimizer) for _ in range(3)]
    assert losses == [_step(tied_ranks, tied_optimizer) for _ in range(3)]
    with pytest.raises(FailedPrecondition, match="FullyShardedDataParallel has the layers'"):
        delink(list(model.blocks))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is reported while layers of `model.blocks` are to share until the second step."""
    lines: list[str] = []
    shared = SharedLayers("model.blocks", 2, lines.append)
    monkeypatch.setattr(deferred_start, "shared_layers", lambda: shared)
    runtimes.start(FakeClient(), Observer(), adopt_everything=True, shared_layers=shared)
    yield lines
    runtimes.stop()


_shard = fully_sharded.sharding(fully_shard)


def test_a_layer_that_a_script_shards_is_sharded_with_all_others(
    mesh: Any, lines: list[str]
) -> None:
    model: Any = Model()
    first, *others = model.blocks
    assert _shard(first, mesh=mesh) is first
    assert lines == ["3 layers of model.blocks share their parameters"]
    assert all(isinstance(block, fsdp.FSDPModule) for block in others)
    for block in others:
        assert _shard(block, mesh=mesh, reshard_after_forward=False) is block
    _shard(model, mesh=mesh)
    optimizer = _sgd(model)
    assert len(optimizer.param_groups[0]["params"]) == 6
    _step(model, optimizer)
    _step(model, optimizer)
    assert len(optimizer.param_groups[0]["params"]) == 14


def test_layers_that_are_to_be_sharded_unlike_are_refused(mesh: Any, lines: list[str]) -> None:
    model: Any = Model()
    _shard(model.blocks[0], mesh=mesh)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    with pytest.raises(SystemExit, match="fully_shard has one mp_policy for a layer, and another"):
        _shard(model.blocks[1], mesh=mesh, mp_policy=policy)


def test_fully_sharded_data_parallel_is_refused_in_a_script(mesh: Any, lines: list[str]) -> None:
    model = Model()
    ranks = fsdp.FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu")
    )
    with pytest.raises(SystemExit, match="--share model.blocks: FSDP has sharded these layers"):
        _sgd(ranks)
