"""A transformer with AdamW, a schedule and clipped gradients."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(2)
model = TinyGpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
losses = []
for _ in range(6):
    loss = loss_of(model, batch())
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    losses += [loss.item(), norm.item()]
finish(losses, model)
