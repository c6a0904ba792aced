"""DistributedDataParallel in two ranks that may come to differ, of a launcher or its own.

Each rank writes its result, to RESULT with its number. Without a launcher, the ranks are started by
torch.multiprocessing.spawn, or as START says: by Process, with its method. Arguments:

    flip       in step 3, a bit of one gradient of rank 1 changes after the ranks have reduced it
    one        after each step, rank 1 alone writes a weight
    all        after each step, all ranks write a weight
    unlike     the ranks have different models, which they do not reduce
    unused     in some steps a rank has no gradient for a layer, as no rank uses it
    missing    from step 3 on, rank 1 alone drops a gradient before it steps
    rate       from step 3 on, rank 1 has another learning rate
    kill       rank 1 is killed in step 3
    threads    rank 1 has two threads, so that torch divides tensors elsewhere
    masters    bf16 with fp32 masters, of memtide.AdamW
    sgd        SGD with momentum in the place of AdamW
    frozen     all layers but the last two are frozen
    sharded    each rank has parts of all parameters: FSDP
    loaded     the optimizer's state is loaded before the first step
    alike      nothing differs

Rank 0 runs the Python program AT_END of the environment while all ranks still live.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_WIDTH, _STEPS, _APART = 512, 6, 3


class Layers(nn.Module):
    """Linear layers, of which the last but one may be left out."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor, *, skips: bool) -> torch.Tensor:
        for layer in self.layers[: -1 if skips else None]:
            x = nn.functional.gelu(layer(x))
        return self.head(x)


def flip_bit(parameter: torch.Tensor) -> None:
    """Changes one bit of the gradient."""
    assert parameter.grad is not None
    parameter.grad.view(-1)[7:8].view(torch.int32).bitwise_xor_(1 << 20)


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "masters":
        import memtide

        return memtide.AdamW(model.parameters(), lr=1e-3, weights="master")
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def load_state(optimizer: torch.optim.Optimizer) -> None:
    """Gives the optimizer a state as after three steps."""
    saved = optimizer.state_dict()
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        saved["state"][number] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn_like(parameter) * 1e-3,
            "exp_avg_sq": torch.rand_like(parameter) * 1e-6,
        }
    optimizer.load_state_dict(saved)


def train(kind: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    if kind == "threads" and rank == 1:
        torch.set_num_threads(2)
    layers = Layers([_WIDTH] * (7 if kind == "unlike" and rank else 9))
    if kind == "masters":
        layers.bfloat16()
    elif kind == "frozen":
        layers.layers[:-2].requires_grad_(requires_grad=False)
    model: nn.Module = layers
    if kind == "sharded":
        fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))
    elif kind != "unlike":
        model = DistributedDataParallel(layers, find_unused_parameters=kind == "unused")
    optimizer = optimizer_of(model, kind)
    if kind == "loaded":
        load_state(optimizer)
    torch.manual_seed(rank)
    losses = []
    for step in range(_STEPS):
        x = torch.randn(16, _WIDTH, dtype=layers.head.weight.dtype)
        scores = model(x, skips=kind == "unused" and step % 2 == 1)
        loss = nn.functional.cross_entropy(scores.float(), torch.randint(0, 10, (16,)))
        loss.backward()
        if rank == 1 and step >= _APART:
            if kind == "flip" and step == _APART:
                flip_bit(layers.layers[5].weight)
            elif kind == "missing":
                layers.layers[5].weight.grad = None
            elif kind == "rate":
                optimizer.param_groups[0]["lr"] = 2e-3
            elif kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        if kind == "all" or (kind == "one" and rank == 1):
            with torch.no_grad():
                layers.layers[2].weight.mul_(0.999)
        losses.append(loss.item())
    os.environ["RESULT"] += str(rank)
    ours = [p.to_local() if isinstance(p, DTensor) else p for p in layers.parameters()]
    finish(losses, SimpleNamespace(state_dict=lambda: dict(enumerate(ours))))
    dist.barrier()
    if rank == 0 and "AT_END" in os.environ:
        subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)
    dist.barrier()


def start(rank: int, kind: str) -> None:
    """Trains in a process that `spawn` has started."""
    meeting = f"file://{os.environ['RESULT']}.met"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train(kind)
    leave()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(sys.argv[1])
        leave()
    elif "START" in os.environ:
        context = torch.multiprocessing.get_context(os.environ["START"])
        ranks = [context.Process(target=start, args=(rank, sys.argv[1])) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    else:
        torch.multiprocessing.spawn(start, (sys.argv[1],), nprocs=2)
