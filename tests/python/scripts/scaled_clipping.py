"""Training under a GradScaler, whose unscaled gradients are clipped: `scaled_clipping.py LIMIT...`,
with one limit a step, in a cycle."""

import itertools
import sys

import torch
from common import finish
from torch import nn

torch.manual_seed(31)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
limits = itertools.cycle(map(float, sys.argv[1:]))
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 512)).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), next(limits))
    scaler.step(optimizer)
    scaler.update()
    losses += [loss.item(), norm.item()]
finish(losses, model)
