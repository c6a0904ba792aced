"""Trains a vision transformer of timm with its layer-wise learning rates, its schedule, stochastic
depth, and an average of the weights."""

from __future__ import annotations

import timm
import torch
from report import finish
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64, drop_path_rate=0.1)
average = ModelEmaV3(model, decay=0.9)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
schedule = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2)
losses = []
for step in range(10):
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step(step)
    average.update(model, step=step)
    losses.append(loss.item())
finish(losses, model, average.module)
