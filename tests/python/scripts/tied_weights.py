"""A transformer whose output layer shares the weight of its embedding."""

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

torch.manual_seed(3)
model = TinyGpt(tied=True)
assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)
losses = []
for _ in range(5):
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    losses.append(loss.item())
assert model.head.weight is model.embed.weight
finish(losses, model)
