"""`fully_shard` in two processes that a launcher starts. Rank 0 writes its own shards.

Sizes are odd, so that shards are padded; gradients of two passes are accumulated and clipped. In
the middle, unless the argument is "steps", both whole state dicts are loaded into new objects, with
which training continues.
"""

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

_WIDTH = 511
_WHOLE = StateDictOptions(full_state_dict=True)


def build(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer. "half" computes in bf16, "meta" is built without memory."""
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if kind == "half" else None)
    with torch.device("meta" if kind == "meta" else "cpu"):
        model = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
                for _ in range(6)
            ),
            nn.Linear(_WIDTH, 10),
        )
    for module in (*model, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    if kind == "meta":
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.04)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(rank: int, kind: str) -> None:
    """Trains; rank 0 writes its losses, and its shards of parameters and states."""
    torch.manual_seed(0)
    model, optimizer = build(kind)
    torch.manual_seed(rank)
    losses = []
    for step in range(6):
        for _ in range(2):
            scores = model(torch.randn(16, _WIDTH))
            loss = nn.functional.cross_entropy(scores.float(), torch.randint(0, 10, (16,)))
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == 2 and kind != "steps":
            states = get_state_dict(model, optimizer, options=_WHOLE)
            model, optimizer = build(kind)
            both = zip(("model_state_dict", "optim_state_dict"), states, strict=True)
            set_state_dict(model, optimizer, **dict(both), options=_WHOLE)
    if rank == 0:
        states = [state[name] for state in optimizer.state.values() for name in sorted(state)]
        parts = [
            t.to_local() if isinstance(t, DTensor) else t for t in (*model.parameters(), *states)
        ]
        finish(losses, SimpleNamespace(state_dict=lambda: dict(enumerate(parts))))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(int(os.environ["RANK"]), sys.argv[1])
    leave()
