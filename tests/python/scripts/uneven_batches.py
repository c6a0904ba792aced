"""Trains with a batch size for each step, BATCHES; each row saves some 200 KiB. Writes each loss at
once. It can be resumed.

In step WAIT_AT, if it is set, the script waits for the file WAIT_FOR before it begins; in KILL_AT
it kills itself behind the backward pass. The second of the ranks that a launcher starts has batches
of ten times the size.
"""

import json
import os
import signal
from pathlib import Path

import memtide
import torch
import torch.distributed as dist
from common import leave
from sequence_point import wait_for
from torch import nn

WIDTH, BLOCKS = 256, 14
RANK = os.environ.get("RANK", "")
wait_at, kill_at = (int(os.environ.get(name, -1)) for name in ("WAIT_AT", "KILL_AT"))


class Block(nn.Module):
    """Saves seven times what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        for _ in range(3):
            y = torch.sigmoid(y.square() + x)
        return x + y


if RANK:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = json.loads(os.environ["BATCHES"])
path = Path(os.environ["RESULT"] + RANK)
with path.open("a", buffering=1, encoding="utf-8") as losses:
    for step in range(memtide.resumed_step(), len(batches)):
        if step == wait_at:
            wait_for(Path(os.environ["WAIT_FOR"]))
        torch.manual_seed(step)
        rows = batches[step] * (10 if RANK == "1" else 1)
        loss = model(torch.randn(rows, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        losses.write(f"{step} {loss.item().hex()}\n")
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if RANK:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
if RANK:
    del model, optimizer, loss, parameter
    leave()
