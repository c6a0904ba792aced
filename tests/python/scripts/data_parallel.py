"""A rank of DistributedDataParallel, as a launcher starts it; the first one tells of all."""

import torch
import torch.distributed as dist
from common import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(512, 10))
ranks = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ranks.parameters(), lr=1e-3)
losses = []
torch.manual_seed(dist.get_rank())
for _ in range(6):
    scores = ranks(torch.randn(16, 512))
    loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (16,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
if dist.get_rank() == 0:
    finish(losses, model)
dist.destroy_process_group()
