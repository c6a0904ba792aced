"""Trains a model of a few parameters, of which one in turn is used; after two steps a bit flips in
each MiB of every file that the daemon (DAEMON, its pid) has in SSD_DIR. Prints each loss."""

from __future__ import annotations

import os
import pathlib

import torch
from torch import nn

MIB = 1 << 20


def flip() -> None:
    flipped = 0
    for entry in pathlib.Path(f"/proc/{os.environ['DAEMON']}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # The daemon has closed another file meanwhile.
            continue
        if not target.startswith(os.environ["SSD_DIR"]) or not target.endswith("(deleted)"):
            continue
        with entry.open("r+b") as file:
            for start in range(0, os.fstat(file.fileno()).st_size, MIB):
                file.seek(start + MIB // 2)
                byte = file.read(1)[0]
                file.seek(start + MIB // 2)
                file.write(bytes([byte ^ 1]))
                flipped += 1
    assert flipped > 8, flipped


torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(4):
    if step == 2:
        flip()
    optimizer.zero_grad()
    loss = model(torch.ones(2, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
