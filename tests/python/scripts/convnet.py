"""Convolutions in channels_last with batch norm, evaluated between epochs."""

import torch
from common import finish
from torch import nn

torch.manual_seed(8)


def stage(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()
    )


model = nn.Sequential(
    stage(3, 64),
    stage(64, 256),
    stage(256, 640),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(640, 10),
).to(memory_format=torch.channels_last)
assert model[1][0].weight.is_contiguous(memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
losses = []
for _ in range(2):
    model.train()
    for _ in range(3):
        images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), torch.randint(10, (8,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(torch.randn(8, 3, 32, 32)).square().mean().item())
assert model[1][0].weight.is_contiguous(memory_format=torch.channels_last)
finish(losses, model)
