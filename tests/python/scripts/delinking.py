"""Six blocks of two matrices of 2 MiB train. They share their parameters for two steps under
`memtide run --share`, or with BY_HAND by calls. With WAITS, it waits before and after they part
until somebody has looked: it makes the file WAITS + ".shared" or ".parted", and goes on when there
is one more with ".seen"."""

import os
import time
from pathlib import Path

import torch
from common import finish
from torch import nn

_BLOCKS, _WIDTH, _STEPS, _SHARING_STEPS = 6, 512, 5, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(_WIDTH, 2 * _WIDTH, bias=False)
        self.out = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.out(torch.tanh(self.into(x)))
        return x + mixed


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(_BLOCKS))
        self.head = nn.Linear(_WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores


def look(moment: str) -> None:
    waits = os.environ.get("WAITS")
    if waits is None:
        return
    Path(f"{waits}.{moment}").touch()
    seen = Path(f"{waits}.{moment}.seen")
    while not seen.exists():
        time.sleep(0.01)


def train() -> None:
    by_hand = "BY_HAND" in os.environ
    torch.manual_seed(5)
    model = Model()
    if by_hand:
        import memtide

        memtide.share_layers(list(model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(_STEPS):
        loss = model(torch.randn(4, _WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step + 1 == _SHARING_STEPS:
            look("shared")
        optimizer.step()
        if step + 1 == _SHARING_STEPS:
            if by_hand:
                memtide.delink(list(model.blocks), optimizer)
            look("parted")
        losses.append(loss.item())
    finish(losses, model)


if __name__ == "__main__":
    train()
