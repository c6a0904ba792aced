"""Several backward passes before each step."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(4)
model = TinyGpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(3):
    for _ in range(3):
        loss = loss_of(model, batch()) / 3
        loss.backward()
        losses.append(loss.item())
    for parameter in model.parameters():
        losses.append(parameter.grad.abs().max().item())
    optimizer.step()
    optimizer.zero_grad()
finish(losses, model)
