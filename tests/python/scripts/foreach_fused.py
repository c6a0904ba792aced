"""The foreach and fused forms of optimizers."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(11)
losses = []
models = []
for options in ({"foreach": True}, {"fused": True}):
    model = TinyGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        losses.append(loss.item())
    models.append(model)
finish(losses, *models)
