"""A model whose layers share their parameters for three steps, sharded by `fully_shard` in the
processes of a launcher. Each rank writes its result, to RESULT with its number.

The argument says what is sharded beside the model: "model": nothing, "layers": each layer, "parts":
each layer, and a part of it alone. SHARING in the environment says what lets the layers share:
"calls" of memtide, or "torch": tied parameters, and then a new model with copies; without it,
nothing in this script does.

Sizes are odd, so that shards are padded. Each layer has a buffer of its own.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

_STEPS, _SHARING_STEPS = 6, 3
_WIDTH = 129
_WHOLE = StateDictOptions(full_state_dict=True)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.mix = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH + 1), nn.GELU(), nn.Linear(2 * _WIDTH + 1, _WIDTH)
        )
        self.register_buffer("seen", torch.zeros(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().mean(0)
        return x + self.mix(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(_WIDTH, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model: Model, kind: str, *, together: bool) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = list(model.blocks)
    parts = {"model": [], "layers": [blocks], "parts": [[b.mix for b in blocks], blocks]}[kind]
    for modules in parts:
        if together:
            fully_shard(modules, mesh=mesh)
            continue
        for module in modules:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tie(model: Model) -> None:
    first = model.blocks[0]
    for block in model.blocks[1:]:
        for name, parameter in first.named_parameters():
            path, _, last = name.rpartition(".")
            setattr(block.get_submodule(path), last, parameter)


def with_copies(
    model: Model, optimizer: torch.optim.Optimizer, kind: str
) -> tuple[Model, torch.optim.Optimizer]:
    """A new model in plain torch, with the states that the tied one has."""
    fresh = Model()
    fresh.load_state_dict(get_model_state_dict(model, options=_WHOLE))
    shard(fresh, kind, together=False)
    tied = dict(model.named_parameters(remove_duplicate=False))
    fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)
    for name, parameter in fresh.named_parameters():
        state = optimizer.state[tied[name]]
        fresh_optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}
    return fresh, fresh_optimizer


def check_checkpoint(model: Model) -> None:
    """The whole state dict loads in plain torch."""
    plain = Model()
    plain.load_state_dict(get_model_state_dict(model, options=_WHOLE))
    inputs = torch.ones(3, _WIDTH)
    with torch.no_grad():
        if not torch.equal(plain.eval()(inputs), model.eval()(inputs)):
            raise SystemExit("the model from the checkpoint gives other results")
    model.train()


def check_nothing_moved(model: Model) -> None:
    """Shards of all layers, padded or not, are in the memory of one until they are written."""
    weights = [block.mix[0].weight for block in model.blocks]
    # `data_ptr` would count as a write.
    if len({torch._C._data_address(weight._local_tensor) for weight in weights}) > 1:
        raise SystemExit("a shard has been copied")


def train(rank: int, kind: str, sharing: str | None) -> None:
    torch.manual_seed(3)
    model = Model()
    if sharing == "torch":
        tie(model)
    elif sharing == "calls":
        import memtide

        memtide.share_layers(list(model.blocks))
    shard(model, kind, together=sharing is not None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(_STEPS):
        inputs = torch.randn(16, _WIDTH, generator=generator)
        labels = torch.randint(7, (16,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step + 1 == _SHARING_STEPS:
            if sharing == "torch":
                model, optimizer = with_copies(model, optimizer, kind)
            elif sharing == "calls":
                memtide.delink(list(model.blocks), optimizer)
                check_nothing_moved(model)
        losses.append(loss.item())
        check_checkpoint(model)
    # The optimizer has shards also where FSDP has left the model's parameters whole.
    parameters = optimizer.param_groups[0]["params"]
    states = [optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq")]
    parts = [t.to_local() if isinstance(t, DTensor) else t for t in (*parameters, *states)]
    parts += list(model.buffers())
    os.environ["RESULT"] += str(rank)
    finish(losses, SimpleNamespace(state_dict=lambda: dict(enumerate(parts))))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(int(os.environ["RANK"]), sys.argv[1], os.environ.get("SHARING"))
    leave()
