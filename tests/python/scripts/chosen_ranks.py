"""DistributedDataParallel in two processes; each step leaves other parameters unused. CHOICES
in the environment says what is done with activations; without it memtide is not used."""

import contextlib
import json
import os
from pathlib import Path

import memtide
import torch
import torch.distributed as dist
from common import digest, leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, STEPS = 128, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.dropout(self.narrow(nn.functional.gelu(self.wide(x))), 0.1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 10) for _ in range(3))
        self.never = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, head):
        for block in self.blocks:
            x = block(x)
        return self.heads[head](x)


def train(rank):
    torch.manual_seed(0)
    model = Model()
    ranks = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ranks.parameters(), lr=0.1)
    managed = contextlib.nullcontext()
    if "CHOICES" in os.environ:
        choices = json.loads(os.environ["CHOICES"])
        managed = memtide.offload(model, optimizer, host_memory="1GiB", activations=choices)
    losses, activations = [], None
    torch.manual_seed(rank)
    with managed as offloaded:
        for step in range(STEPS):
            scores = ranks(torch.randn(64, WIDTH), (step + rank) % 3)
            loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (64,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        if offloaded is not None:
            activations = offloaded.stats()["budget"]["activations"]
    result = {"losses": losses, "digest": digest(model.state_dict().values())}
    text = json.dumps({"result": result, "activations": activations})
    Path(f"{os.environ['RESULT']}.{rank}").write_text(text, encoding="utf-8")


def start(rank, meeting):
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    train(rank)
    leave()


if __name__ == "__main__":
    torch.multiprocessing.spawn(start, (f"file://{os.environ['RESULT']}.met",), nprocs=2)
