"""A transformer whose blocks share their parameters for three steps, if `memtide run` lets them or,
with BY_HAND in the environment, by calls. Under a launcher, ranks train it data-parallel.

GROUPS gives each of its layers a group of its own, without and with weight decay."""

import os

import torch
import torch.distributed as dist
from common import finish, leave
from tiny_gpt import TinyGpt, batch, loss_of
from torch import nn

_STEPS, _SHARING_STEPS = 6, 3


def groups_of(model: nn.Module) -> list[dict[str, object]]:
    parts = [*model.blocks, model.embed, model.place, model.norm, model.head]
    of_parts = [list(part.parameters()) for part in parts]
    return [
        {"params": [p for p in part if (p.dim() > 1) == decays], "weight_decay": 0.1 * decays}
        for part in of_parts
        for decays in (True, False)
        if any((p.dim() > 1) == decays for p in part)
    ]


def train() -> None:
    by_hand = "BY_HAND" in os.environ
    is_rank = "RANK" in os.environ
    if is_rank:
        dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = TinyGpt()
    optimizer = None
    if "GROUPS" in os.environ:
        optimizer = torch.optim.AdamW(groups_of(model), lr=1e-3)
    if by_hand:
        import memtide

        memtide.share_layers(list(model.blocks), optimizer)
    trained = nn.parallel.DistributedDataParallel(model) if is_rank else model
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank() if is_rank else 0)
    losses = []
    for step in range(_STEPS):
        loss = loss_of(trained, batch())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if by_hand and step + 1 == _SHARING_STEPS:
            memtide.delink(list(model.blocks), optimizer)
            trained = nn.parallel.DistributedDataParallel(model) if is_rank else model
        losses.append(loss.item())
    if is_rank:
        os.environ["RESULT"] += os.environ["RANK"]
    finish(losses, model)


if __name__ == "__main__":
    train()
    if dist.is_initialized():
        leave()
