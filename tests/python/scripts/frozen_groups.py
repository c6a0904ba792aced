"""Frozen layers, one of which is trained later, and parameter groups with different rates."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(5)
model = TinyGpt(layers=4)
model.embed.requires_grad_(False)
model.blocks[0].requires_grad_(False)
decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
plain = [p for p in model.parameters() if p.requires_grad and p.ndim == 1]
optimizer = torch.optim.AdamW(
    [
        {"params": decayed, "weight_decay": 0.1},
        {"params": plain, "weight_decay": 0.0, "lr": 3e-4},
    ],
    lr=1e-3,
)
losses = []
for step in range(6):
    if step == 3:
        model.blocks[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model.blocks[0].parameters()), "lr": 1e-4})
    optimizer.zero_grad()
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
