"""Training with evaluations: `evaluating.py DEVICE PASSES`. Each of three steps is followed by
PASSES forward passes under `no_grad`, and the last one by as many under `inference_mode`, each of
which generates a token."""

import sys

import torch
from common import finish
from tiny_gpt import TinyGpt, batch, loss_of

device, passes = sys.argv[1], int(sys.argv[2])
torch.manual_seed(2)
model = TinyGpt().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = [batch().to(device) for _ in range(4)]
evaluation = data.pop()[:, :-1]
losses, outputs = [], []
for each in data:
    loss = loss_of(model, each)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    with torch.no_grad():
        outputs += [model(evaluation) for _ in range(passes)]
tokens = evaluation[:1, :1]
with torch.inference_mode():
    for _ in range(passes):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(2)], 1)
on_host = torch.stack(outputs).cpu()
finish([*losses, *on_host.double().sum((1, 2, 3)), *tokens[0].cpu()], model)
