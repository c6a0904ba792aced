"""A model of equal layers, and a region of autocast in which its weights are cast."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 128
LAYERS = 8
FEW_CHUNKS = 100  # The weights of `deep` have more of FakeClient's.


def deep() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def region() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def batch() -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(4, WIDTH)
