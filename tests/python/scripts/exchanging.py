"""Data parallelism whose ranks exchange parts of their gradients: `exchanging.py KIND [OPTIONS]`,
with a function of memtide.exchange, or `plain` or `exact`, and its options as JSON.

Each rank writes its losses and weights to RESULT and its number."""

import json
import os
import sys

import memtide.exchange
import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn

_STEPS = 40


def train(kind: str, options: dict[str, float]) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    # Buckets of a few parameters each.
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(net, nn.Linear(128, 1)), bucket_cap_mb=0.05
    )
    if kind != "plain":
        make = memtide.exchange.threshold if kind == "exact" else getattr(memtide.exchange, kind)
        exchange = make(model, **options)
        exchange.exact = kind == "exact"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    teacher = torch.randn(16, 1)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(_STEPS):
        inputs = torch.randn(64, 16)
        loss = nn.functional.mse_loss(model(inputs), torch.tanh(inputs @ teacher))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    os.environ["RESULT"] += str(rank)
    finish(losses, model)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
    leave()
