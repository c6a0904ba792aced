"""What fewer bytes cost in loss: the example's GPT in the formats that memtide.AdamW offers.

    python bench/losses.py             all of them, in a table; 2 minutes

No matter of speed: plain PyTorch, no daemon, the same losses every time on a machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memtide
import torch
from figures import Pair
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import train_gpt  # noqa: E402

_LAYERS, _WIDTH, _CONTEXT, _BATCH = 4, 128, 64, 16
STEPS = 300
_JUDGED = 50  # The last steps, whose mean loss counts.
_LR = 1e-3

Optimizers = Callable[[Any], torch.optim.Optimizer]


def _ours(**options: Any) -> Optimizers:
    return lambda parameters: memtide.AdamW(parameters, lr=_LR, **options)


def _torchs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=_LR)


# The parameters' type, their optimizer, and bytes a parameter with its gradient and states.
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
}


def loss_of(way: str, steps: int = STEPS) -> float:
    """The mean loss of the last steps; the same every time on one machine."""
    dtype, made, _ = WAYS[way]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    corpus = train_gpt.read_corpus()
    model = train_gpt.Gpt(_LAYERS, _WIDTH, _CONTEXT).to(dtype)
    optimizer = made(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, targets = train_gpt.draw_batch(corpus, _BATCH, _CONTEXT, generator)
        logits = model(inputs).flatten(0, 1).float()
        loss = functional.cross_entropy(logits, targets.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-_JUDGED:]) / _JUDGED


# Of which goals say something, by the names of their figures.
_PROMISED = {
    "losses.bf16_moments": "fp32, bf16 moments",
    "losses.master": "bf16, master",
    "losses.stochastic": "bf16, stochastic",
}


def measure(steps: int) -> dict[str, list[Pair]]:
    """Losses against that of fp32 and torch.optim.AdamW."""
    plain = loss_of("fp32", steps)
    return {name: [Pair(plain, loss_of(way, steps), 0)] for name, way in _PROMISED.items()}


def main() -> None:
    plain = loss_of("fp32")
    for way, (_, _, size) in WAYS.items():
        loss = plain if way == "fp32" else loss_of(way)
        print(f"{way:32} {size:2} bytes  loss {loss:.4f}  {loss / plain - 1:+.2%}", flush=True)


if __name__ == "__main__":
    main()
