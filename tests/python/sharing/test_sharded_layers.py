"""Layers that share under `fully_shard` train as tied parameters do there in plain torch, and part
in place."""

from __future__ import annotations

import copy
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
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide.errors import FailedPrecondition
from memtide_methods.sharing.layers import delink, share_layers
from memtide_methods.sharing.shared_layers import SharedLayers
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
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
    # There memtide replaces fully_shard before other modules of torch have it by name.
    new = cli.in_new_interpreters()
    done = new.memtide("run", *ranks, RESULT=ran, OMP_NUM_THREADS=1).check()
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
            nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(3)
        )
        self.head = nn.Linear(16, 4)

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
    if kind in ("layers", "layers backwards"):
        fully_shard(blocks if kind == "layers" else blocks[::-1], mesh=mesh)
    elif kind == "pairs":
        fully_shard([module for block in blocks for module in block], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, blocks


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.ones(2, 16)).pow(2).sum()
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
    # Gradients lie in a buffer with others, all of which a later write would copy.
    bias = blocks[1][0].bias
    assert bias.grad._local_tensor.untyped_storage().nbytes() == bias.nbytes
    model(torch.ones(2, 16)).sum().backward()
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
    assert all(fully_shard.state(block) is block._get_fsdp_state() for block in blocks)
    blocks[1].unshard()
    whole = [type(block[0].weight) is nn.Parameter for block in blocks]
    assert whole == [False, True, False]
    blocks[1].reshard()
    model.zero_grad()
    model(torch.ones(2, 16)).sum().backward()
    alone = [block[0].weight.grad.full_tensor() for block in blocks]
    blocks[2].set_gradient_divide_factor(1.0)
    model.zero_grad()
    model(torch.ones(2, 16)).sum().backward()
    now = [block[0].weight.grad.full_tensor() for block in blocks]
    assert torch.equal(now[1], alone[1]) and torch.equal(now[2], 4 * alone[2])
    # The whole parameters stay after a forward pass, and a checkpoint has shards nevertheless.
    model(torch.ones(2, 16))
    assert all(type(block[0].weight) is nn.Parameter for block in blocks)
    blocks[2].state_dict()
    assert [type(block[0].weight) is nn.Parameter for block in blocks] == [True, True, False]


def test_parameters_are_in_the_order_of_fully_shard_where_the_model_alone_is_sharded(
    mesh: Any,
) -> None:
    def order(model: Any) -> list[str]:
        names = {parameter: name for name, parameter in model.named_parameters()}
        (group,) = model._get_fsdp_state()._fsdp_param_groups
        return [names[each.sharded_param] for each in group.fsdp_params]

    model, blocks = _sharing(mesh, "model")
    _step(model, _sgd(model))
    model(torch.ones(2, 16))  # FSDP leaves the model's parameters whole.
    delink(blocks)
    plain: Any = Model()
    fully_shard(plain, mesh=mesh)
    assert order(model) == order(plain)
    # A layer's checkpoint has shards.
    model(torch.ones(2, 16))
    assert type(blocks[2][0].weight) is nn.Parameter
    assert all(hasattr(value, "full_tensor") for value in blocks[2].state_dict().values())


@pytest.mark.parametrize("kind", ["model", "layers", "layers backwards", "pairs"])
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


def test_a_whole_checkpoint_of_parted_layers_goes_on_in_plain_torch(mesh: Any) -> None:
    model, blocks = _sharing(mesh, "layers")
    optimizer = _sgd(model)
    _step(model, optimizer)
    whole = StateDictOptions(full_state_dict=True)
    # While layers share, states are those of the first one, as torch has it for tied parameters.
    state = get_optimizer_state_dict(model, optimizer, options=whole)
    assert [name for name in state["state"] if "0.weight" in name] == ["blocks.0.0.weight"]
    delink(blocks, optimizer)
    plain = Model()
    plain_optimizer = _sgd(plain)
    states = copy.deepcopy(get_state_dict(model, optimizer, options=whole))
    set_state_dict(
        plain,
        plain_optimizer,
        model_state_dict=states[0],
        optim_state_dict=states[1],
        options=whole,
    )
    plain_losses = [_step(plain, plain_optimizer) for _ in range(3)]
    assert [_step(model, optimizer) for _ in range(3)] == plain_losses


def test_layers_that_are_sharded_alone_are_refused_with_the_way_to_shard_them(mesh: Any) -> None:
    model: Any = Model()
    share_layers(list(model.blocks))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match=re.escape("use fully_shard([module_a, module_b])")):
        model(torch.ones(2, 16))
    with pytest.raises(FailedPrecondition, match=re.escape("fully_shard([*layers])")):
        delink(list(model.blocks))


def test_sharded_layers_cannot_begin_to_share(mesh: Any) -> None:
    model: Any = Model()
    fully_shard(model, mesh=mesh)
    with pytest.raises(FailedPrecondition, match="FSDP has sharded these layers"):
        share_layers(list(model.blocks))


@pytest.mark.parametrize("how", ["whole", "in another type", "over a part of the ranks"])
def test_layers_do_not_part_while_gradients_wait_for_their_reduction(how: str, mesh: Any) -> None:
    policy = fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    options: dict[str, Any] = {"mp_policy": policy} if how == "in another type" else {}
    if how == "over a part of the ranks":
        mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
    model: Any = Model()
    blocks = list(model.blocks)
    share_layers(blocks)
    fully_shard(model, mesh=mesh, **options)
    set_reduced = (
        model.set_requires_all_reduce
        if how == "over a part of the ranks"
        else model.set_requires_gradient_sync
    )
    set_reduced(False)
    model(torch.ones(2, 16)).sum().backward()
    with pytest.raises(FailedPrecondition, match="gradients of the layers have not been reduced"):
        delink(blocks)
    assert blocks[1][0].weight is blocks[0][0].weight
    set_reduced(True)
    model(torch.ones(2, 16)).sum().backward()
    delink(blocks)
    assert blocks[1][0].weight is not blocks[0][0].weight


def test_a_torch_that_has_its_states_elsewhere_is_refused(mesh: Any) -> None:
    model, blocks = _sharing(mesh, "model")
    del model._get_fsdp_state()._auto_reshard_after_forward
    wanted = f"torch {torch.__version__} has no _auto_reshard_after_forward in FSDP's FSDPState"
    with pytest.raises(FailedPrecondition, match=re.escape(wanted)):
        delink(blocks)


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
    """The lines reported while layers of `model.blocks` are to share until the second step."""
    lines: list[str] = []
    shared = SharedLayers("model.blocks", 2, lines.append)
    monkeypatch.setattr(deferred_start, "shared_layers", lambda: shared)
    runtimes.start(FakeClient(), Observer(), adopt_everything=True, first_phases=[shared])
    yield lines
    runtimes.stop()


_shard = fully_sharded.sharding(fully_shard)


def test_a_layer_that_a_script_shards_is_sharded_with_all_others(
    mesh: Any, lines: list[str]
) -> None:
    runtime: Any = runtimes.current()
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
    # Each has a chunk's part for its shard, in both tensors that FSDP has over it, and for its
    # moments.
    _step(model, optimizer)
    for block in model.blocks:
        weight = block[0].weight
        (shard,) = (
            p
            for p in block._get_fsdp_state()._fsdp_param_group.fsdp_params
            if p.sharded_param is weight
        )
        assert shard._sharded_param_data.data_ptr() == weight._local_tensor.data_ptr()
        for tensor in (weight, optimizer.state[weight]["momentum_buffer"]):
            assert runtime.memory.addresses.manages(tensor._local_tensor)


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
