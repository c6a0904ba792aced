"""Trains adapters over a frozen model: `adapters.py KIND NUMBER COUNT FOLDER`.

COUNT such scripts have the same frozen model, and step together: each waits in FOLDER for the
others after each step. Script number 1 writes into its model by hand before step 5 if KIND is
"writes", and offloads its model itself if that is "offload". Writes its losses, and what the model
adds up to, to FOLDER/resultNUMBER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import memtide
import torch
from sequence_point import wait_for

LAYERS, WIDTH, RANK, STEPS = 16, 512, 4, 10
kind, number, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


class Adapted(torch.nn.Module):
    """A frozen layer, and the low-rank adapter beside it."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x) + self.up(self.down(x)))


def meet(what: str) -> None:
    """Returns when all scripts are there."""
    (folder / f"{what}-{number}").touch()
    wait_for(*(folder / f"{what}-{other}" for other in range(count)))


torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
for layer in model:
    # After 1200 bytes there is a gap before the next parameter.
    layer.register_parameter("odd", torch.nn.Parameter(torch.ones(300)))
model.requires_grad_(False)
torch.manual_seed(100 + number)
adapted = torch.nn.Sequential(*(Adapted(layer) for layer in model))
optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.01)
if kind == "offload":
    memtide.offload(adapted, optimizer, chunk_size="2MiB")
losses = []
meet("begins")
for step in range(STEPS):
    if kind == "writes" and number == 1 and step == 5:
        with torch.no_grad():
            model[2].weight.mul_(1.5)
            model[9].bias[3] = 7.0
    loss = (adapted(torch.randn(8, WIDTH)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    meet(f"step{step}")
sums = [p.double().sum().item() for p in model.parameters()]
(folder / f"result{number}").write_text(json.dumps([losses, sums]), encoding="utf-8")
meet("trained")
if kind != "plain":
    wait_for(folder / "ends")
