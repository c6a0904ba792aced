"""One step needs more GPU memory than is free: its allocation fails as one of CUDA's does."""

import os

import torch
from common import finish
from torch import nn

_failures = iter([True, True] if "ON_GPU" in os.environ else [])


@torch.library.custom_op("oom_retry::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    if next(_failures, False):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB. GPU 0 has")
    return x * 2


double.register_autograd(lambda _ctx, grad: grad * 2)

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(4):
    loss = double(model(torch.randn(16, 512))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(losses, model)
