"""Tensors that share bytes, which adopting one of them must not end."""

import torch
from common import finish

torch.manual_seed(15)
width = 700
flat = torch.randn(2 * width * width) / 30
first = torch.nn.Linear(width, width, bias=False)
second = torch.nn.Linear(width, width, bias=False)
first.weight.data = flat[: width * width].view(width, width)
second.weight.data = flat[width * width :].view(width, width)
third = torch.nn.Linear(width, width, bias=False)
seen = third.weight.detach().numpy()
fourth = torch.nn.Linear(width, width)
detached = fourth.weight.detach()
views = [parameter[:2] for parameter in fourth.parameters()]
model = torch.nn.Sequential(first, second, third, fourth)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, width)).square().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        flat.mul_(0.99)
    losses += [loss.item(), flat.sum().item(), float(seen.sum()), detached.sum().item()]
    losses += [view.sum().item() for view in views]
assert first.weight.data_ptr() == flat.data_ptr()
finish(losses, model)
