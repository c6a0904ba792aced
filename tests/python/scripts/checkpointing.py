"""Activations that backward computes again, in both modes of torch.utils.checkpoint."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(6)
models = [TinyGpt(width=192, reentrant=True), TinyGpt(width=192, reentrant=False)]
losses = []
for model in models:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
finish(losses, *models)
