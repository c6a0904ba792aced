"""DistributedDataParallel in two processes, of a launcher or its own. It trains all layers or, with
FROZEN in the environment, the last one. Rank 0 writes the result, and runs the Python program
AT_END of the environment while both live."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from common import finish, leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    if "FROZEN" in os.environ:
        model[:-1].requires_grad_(False)
    ranks = DistributedDataParallel(model)
    trained = [parameter for parameter in ranks.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    losses = []
    torch.manual_seed(rank)
    for _ in range(6):
        scores = ranks(torch.randn(16, 512))
        loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (16,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if rank == 0:
        finish(losses, model)
        if "AT_END" in os.environ:
            subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)


def start(rank: int, meeting: str) -> None:
    """Trains as one of two ranks."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train(rank)
    leave()


if __name__ == "__main__":
    if "RANK" in os.environ:
        start(int(os.environ["RANK"]), "env://")
    else:
        torch.multiprocessing.spawn(start, (f"file://{os.environ['RESULT']}.met",), nprocs=2)
