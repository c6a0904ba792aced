"""Data parallelism by hand, in two processes that a launcher starts. Rank 0 writes the result.

All collectives of a step are begun before one is awaited. They write to gradients, and to
parameters that everything else only reads; and the processes exchange parameters.
"""

import os

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn

_STEPS = 6


def exchange(parameters: list[torch.Tensor], rank: int) -> None:
    """The second process receives the parameters of the first, in place."""
    move = dist.irecv if rank else dist.isend
    for work in [move(p.data, 1 - rank) for p in parameters]:
        work.wait()


def train(rank: int) -> None:
    torch.manual_seed(rank)
    layers = [layer for _ in range(10) for layer in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    parameters = list(model.parameters())
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    for step in range(_STEPS):
        scores = model(torch.randn(16, 512))
        loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (16,)))
        loss.backward()
        losses.append(loss.item())
        if step == _STEPS - 1:  # gloo sometimes aborts if a process ends right after a collective.
            break
        if step % 2:
            works = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
            for work in works:
                work.wait()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            exchange(parameters, rank)
        elif step == 2:
            for parameter in parameters:
                dist.all_reduce(parameter.data, op=dist.ReduceOp.MAX)
    if rank == 0:
        finish(losses, model)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(int(os.environ["RANK"]))
    leave()
