"""Trains until the file `argv[1]` exists, or for STEPS steps; prints the loss of each step."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(640, 640), nn.Tanh()) for _ in range(16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(16, 640), torch.randn(16, 640)
steps = int(os.environ.get("STEPS", "0"))
step = 0
while step < steps or (not steps and not Path(sys.argv[1]).exists()):
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), flush=True)
    step += 1
