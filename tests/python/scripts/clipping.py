"""Training with clipped gradients: `clipping.py LIMIT...`, with one limit a step, in a cycle."""

import itertools
import sys

import torch
from common import finish
from torch import nn

torch.manual_seed(31)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
limits = itertools.cycle(map(float, sys.argv[1:]))
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 512)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), next(limits))
    optimizer.step()
    losses += [loss.item(), norm.item()]
finish(losses, model)
