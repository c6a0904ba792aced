"""Changes that scripts make to a model before they train it: LoRA over a frozen base, also over one
in 8 or 4 bits, and checkpointing of blocks. Plain PyTorch that does not mention memtide."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Quantized(nn.Module):
    """A linear layer whose weight is a buffer of int8, with a scale for each row."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


class InFourBits(nn.Module):
    """A linear layer whose weight is a buffer of pairs of 4 bits, places in a table of 16 values,
    with a scale for each row."""

    weight: torch.Tensor
    scale: torch.Tensor
    values: torch.Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1, keepdim=True)
        places = ((weight / scale + 1) * 7.5).round().to(torch.uint8)
        self.register_buffer("weight", places[:, ::2] * 16 + places[:, 1::2])
        self.register_buffer("scale", scale)
        # Values that lie closer to each other around zero, as weights do.
        steps = torch.linspace(-1, 1, 16, dtype=weight.dtype, device=weight.device)
        self.register_buffer("values", steps * steps.abs())
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack((self.weight >> 4, self.weight & 15), dim=-1).flatten(1)
        return functional.linear(x, self.values[pairs.int()] * self.scale, self.bias)


class Adapted(nn.Module):
    """A frozen linear layer, and the product of two thin ones beside it."""

    def __init__(self, layer: nn.Linear, rank: int, *, bits: int) -> None:
        super().__init__()
        layer.requires_grad_(False)
        quantized = {8: Quantized, 4: InFourBits}
        self.base = quantized[bits](layer) if bits else layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.base(x) + self.up(self.down(x))
        return added


def adapt(module: nn.Module, rank: int, *, bits: int) -> None:
    """Replaces all linear layers in a module, and freezes its other parameters. `bits`: 8 or 4 of
    what is frozen; 0: it stays as it is."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Adapted(child, rank, bits=bits))
        else:
            adapt(child, rank, bits=bits)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)


def checkpoint_blocks(blocks: nn.ModuleList) -> None:
    """Has each block computed again in backward."""
    for block in blocks:
        again: Any = functools.partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = again
