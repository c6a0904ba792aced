"""Trains a ResNet of torchvision in channels-last format, with autocast to bf16, and averages the
weights."""

from __future__ import annotations

import torch
import torchvision
from report import finish

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4
)
average = torch.optim.swa_utils.AveragedModel(model)
losses = []
for step in range(8):
    images = torch.randn(8, 3, 64, 64).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(images)
        loss = torch.nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 3:
        average.update_parameters(model)
    losses.append(loss.item())
finish(losses, model, average)
