"""A model converted to bfloat16, and one under autocast."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(7)
converted = TinyGpt(width=320).to(torch.bfloat16)
optimizer = torch.optim.AdamW(converted.parameters(), lr=1e-3)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss = loss_of(converted, batch(1, 16))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

mixed = TinyGpt(width=192)
optimizer = torch.optim.AdamW(mixed.parameters(), lr=1e-3)
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(mixed, batch(1, 16))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, converted, mixed)
