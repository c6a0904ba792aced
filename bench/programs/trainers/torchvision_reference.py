"""Trains as torchvision's references/classification does: SGD with Nesterov momentum and no decay
of norms, label smoothing, a moving average, warm-up, autocast with a scaler, channels last."""

from __future__ import annotations

import printing
import torch
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10).to(memory_format=torch.channels_last)
norms = [p for n, p in model.named_parameters() if "bn" in n or "downsample.1" in n]
others = [p for p in model.parameters() if not any(p is norm for norm in norms)]
optimizer = torch.optim.SGD(
    [{"params": others}, {"params": norms, "weight_decay": 0.0}],
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    nesterov=True,
)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[3])
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(8):
    images = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(images), torch.randint(0, 10, (4,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    average.update_parameters(model)
    printing.loss(loss)
average.eval()
with torch.no_grad():
    printing.loss(average(images).square().mean())
printing.optimizer(optimizer)
