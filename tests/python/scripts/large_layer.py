"""A convolutional network with one layer that is larger than a small pool."""

import torch
from common import finish
from torch import nn
from torch.nn import functional

torch.manual_seed(11)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(2704, 1000), nn.ReLU()),
    nn.Linear(1000, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    x = torch.rand(32, 1, 28, 28)
    loss = functional.cross_entropy(model(x), torch.randint(10, (32,)))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
