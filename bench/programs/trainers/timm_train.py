"""Trains as timm's train.py does: layer-wise learning rates, mixup, a moving average, clipping."""

from __future__ import annotations

import printing
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, dispatch_clip_grad, random_seed

random_seed(0, 0)
model = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64, drop_path_rate=0.1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
average = ModelEmaV3(model, decay=0.9)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=10, warmup_epochs=2)
criterion = SoftTargetCrossEntropy()
for step in range(8):
    images, labels = mixup(torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)))
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
    optimizer.step()
    average.update(model, step=step)
    schedule.step(step)
    printing.loss(loss)
average.module.eval()
with torch.no_grad():
    printing.loss(average.module(images).square().mean())
printing.optimizer(optimizer)
