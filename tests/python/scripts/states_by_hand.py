"""Reads the states of its optimizer between steps, and changes, replaces and drops them."""

import torch
from common import finish

torch.manual_seed(21)
layers = [torch.nn.Linear(512, 512) for _ in range(6)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
results = []
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 512)).square().mean()
    loss.backward()
    optimizer.step()
    results += [
        loss.item(),
        *(state["exp_avg"].norm().item() for state in optimizer.state.values()),
    ]
    weight = layers[step % 6].weight
    if step == 2:
        optimizer.state[weight]["exp_avg"].mul_(0.5)
    if step == 3:
        optimizer.state[weight]["exp_avg"] = optimizer.state[weight]["exp_avg_sq"].sqrt()
    if step == 4:
        del optimizer.state[weight]
    if step == 5:
        for state in optimizer.state.values():
            state["exp_avg_sq"].view(-1)[::3] *= 1.5
            state["step"] += 7
finish(results, model)
