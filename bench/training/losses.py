"""Measures what smaller formats of memtide.AdamW, and Lion, cost in loss, on the example's GPT.

    python bench/training/losses.py    prints a table of all formats; 2 minutes

Plain PyTorch without a daemon, so the losses are the same every time on a machine. Only what is
stored (parameters, gradients, moments) is in bf16: forward and backward compute in fp32 from the
bf16 values, because a CPU without bf16 instructions takes ten times as long to compute in bf16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memtide
import torch
from torch.func import functional_call
from torch.nn import functional

_BENCH = Path(__file__).resolve().parents[1]
sys.path += [str(_BENCH), str(_BENCH.parent / "examples")]

import train_gpt  # noqa: E402
from figures import Pair  # noqa: E402

_LAYERS, _WIDTH, _CONTEXT, _BATCH = 4, 128, 64, 16
STEPS = 300
_JUDGED = 50  # The last steps, whose mean loss counts.
_LR = 1e-3
_LION_LR = 3e-4  # Each of its updates is as large as the largest of AdamW's.

Optimizers = Callable[[Any], torch.optim.Optimizer]


def _ours(**options: Any) -> Optimizers:
    return lambda parameters: memtide.AdamW(parameters, lr=_LR, **options)


def _lion(**options: Any) -> Optimizers:
    return lambda parameters: memtide.Lion(parameters, lr=_LION_LR, **options)


def _torchs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=_LR)


# For each format: the parameters' type, their optimizer, and the bytes of a parameter together with
# its gradient and states.
WAYS: dict[str, tuple[torch.dtype, Optimizers, int]] = {
    "fp32": (torch.float32, _torchs, 16),
    "fp32, bf16 moments": (torch.float32, _ours(moments=torch.bfloat16), 12),
    "bf16, master": (torch.bfloat16, _ours(), 16),
    "bf16, master, bf16 moments": (torch.bfloat16, _ours(moments=torch.bfloat16), 12),
    "bf16, stochastic": (torch.bfloat16, _ours(weights="stochastic"), 12),
    "bf16, stochastic, bf16 moments": (
        torch.bfloat16,
        _ours(weights="stochastic", moments=torch.bfloat16),
        8,
    ),
    "bf16, torch.optim.AdamW": (torch.bfloat16, _torchs, 8),
    "fp32, Lion": (torch.float32, _lion(), 12),
    "fp32, Lion, bf16 moment": (torch.float32, _lion(moments=torch.bfloat16), 10),
    "bf16, Lion, stochastic, bf16": (
        torch.bfloat16,
        _lion(weights="stochastic", moments=torch.bfloat16),
        6,
    ),
}


def loss_of(way: str, steps: int = STEPS) -> float:
    """The mean loss of the last `_JUDGED` steps; the same every time on one machine."""
    dtype, make_optimizer, _ = WAYS[way]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    corpus = train_gpt.read_corpus()
    fp32_model = train_gpt.Gpt(_LAYERS, _WIDTH, _CONTEXT)
    stored = {
        name: torch.nn.Parameter(parameter.detach().to(dtype))
        for name, parameter in fp32_model.named_parameters()
    }
    optimizer = make_optimizer(stored.values())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, targets = train_gpt.draw_batch(corpus, _BATCH, _CONTEXT, generator)
        in_fp32 = {name: parameter.float() for name, parameter in stored.items()}
        logits = functional_call(fp32_model, in_fp32, inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-_JUDGED:]) / _JUDGED


# The formats that have a figure with a goal, by the figure's name.
_PROMISED = {
    "losses.bf16_moments": "fp32, bf16 moments",
    "losses.master": "bf16, master",
    "losses.stochastic": "bf16, stochastic",
}


def measure(steps: int) -> dict[str, list[Pair]]:
    """Measures the losses against that of fp32 with torch.optim.AdamW."""
    plain = loss_of("fp32", steps)
    return {name: [Pair(plain, loss_of(way, steps), 0)] for name, way in _PROMISED.items()}


def main() -> None:
    plain = loss_of("fp32")
    for way, (_, _, size) in WAYS.items():
        loss = plain if way == "fp32" else loss_of(way)
        print(f"{way:32} {size:2} bytes  loss {loss:.4f}  {loss / plain - 1:+.2%}", flush=True)


if __name__ == "__main__":
    main()
