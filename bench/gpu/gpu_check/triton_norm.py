"""Trains linear layers with an RMSNorm in Triton between them, as Liger's: its kernel takes the
address of the module's own weight, past torch's dispatcher."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from trainee import be_deterministic

_LAYERS, _WIDTH, _ROWS, _STEPS = 12, 4096, 512, 6


@triton.jit
def _scale_rows(x, weight, out, width: tl.constexpr, epsilon: tl.constexpr):
    row = tl.program_id(0) * width
    places = tl.arange(0, width)
    values = tl.load(x + row + places).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, 0) / width + epsilon)
    weights = tl.load(weight + places).to(tl.float32)
    tl.store(out + row + places, (values * scale * weights).to(out.dtype.element_ty))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, hold: Any) -> torch.Tensor:
        context.save_for_backward(x, weight)
        out = torch.empty_like(x)
        with hold(weight):
            _scale_rows[(x.shape[0],)](x, weight, out, x.shape[1], 1e-6)
        return out

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        x, weight = (saved.detach().requires_grad_() for saved in context.saved_tensors)
        with torch.enable_grad():
            normed = nn.functional.rms_norm(x, (x.shape[1],), weight, 1e-6)
        return *torch.autograd.grad(normed, (x, weight), gradients[0]), None


class Norm(nn.Module):
    """An RMSNorm whose forward pass is one kernel."""

    def __init__(self, hold: Any) -> None:
        super().__init__()
        self.weight, self.hold = nn.Parameter(torch.ones(_WIDTH)), hold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = _Norm.apply(x, self.weight, self.hold)
        return normed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    be_deterministic()
    torch.manual_seed(0)
    hold: Any = lambda _: contextlib.nullcontext()  # noqa: E731
    if options.hold:
        import memtide

        hold = memtide.hold
    layers = [(nn.Linear(_WIDTH, _WIDTH), Norm(hold)) for _ in range(_LAYERS)]
    model = nn.Sequential(*(layer for pair in layers for layer in pair))
    model.to(options.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    with options.log.open("w", encoding="utf-8") as log:
        for step in range(_STEPS):
            began = time.perf_counter()
            x = torch.randn(_ROWS, _WIDTH, device=options.device, dtype=torch.bfloat16)
            loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            entry = {"step": step, "loss": loss.item().hex(), "norm": None}
            log.write(json.dumps(entry | {"seconds": time.perf_counter() - began}) + "\n")


if __name__ == "__main__":
    main()
