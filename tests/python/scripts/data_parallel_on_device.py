"""Data parallelism by hand, in processes that a launcher starts, on a device that gloo does not
know: `data_parallel_on_device.py DEVICE`. Each rank writes its result to RESULT and its number.
Rank 0 runs the Python program AT_END of the environment while all live. Rank 1 alters a bit of a
gradient, of 4.weight, in step FLIP_AT of the environment."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn

_STEPS = 8


def average(parameters: list[torch.Tensor]) -> None:
    """Gradients become their mean over the ranks, by way of the CPU."""
    for parameter in parameters:
        gradient = parameter.grad.cpu()
        dist.all_reduce(gradient)
        parameter.grad.copy_(gradient / dist.get_world_size())


def train(device: str, rank: int) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    flip_at = int(os.environ.get("FLIP_AT", 0))
    for step in range(_STEPS):
        scores = model(torch.randn(16, 512).to(device))
        loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (16,)).to(device))
        loss.backward()
        average(list(model.parameters()))
        if rank == 1 and step + 1 == flip_at:
            model[4].weight.grad[3, 5] = -model[4].weight.grad[3, 5]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if "AT_END" in os.environ:
        dist.barrier()
        if rank == 0:
            subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)
        dist.barrier()
    os.environ["RESULT"] += str(rank)
    finish(losses, model)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], int(os.environ["RANK"]))
    leave()
