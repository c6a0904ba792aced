"""A small training over a fake client as on a GPU, and what lease dispatch sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from memtide._torch_hooks.runtime import Runtime
from torch import nn

WARM_UP_STEPS = 3
ROOMY = 256  # A lease budget that has room for all of it.


class Training:
    """A small model whose steps can be watched."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.input = torch.randn(4, 64)

    def forward(self) -> torch.Tensor:
        return self.model(self.input).square().mean()

    def step(self, between: Callable[[], None] = lambda: None) -> float:
        self.optimizer.zero_grad()
        loss = self.forward()
        between()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def warm_up(self) -> Training:
        for _ in range(WARM_UP_STEPS):
            self.step()
        return self


def chunks_of(runtime: Runtime) -> set[int]:
    return set(runtime.client.kinds)


def stack() -> list[Any]:
    """The dispatch modes of this thread."""
    return [
        torch._C._get_dispatch_stack_at(index)
        for index in range(torch._C._len_torch_dispatch_stack())
    ]


def begins_phase(runtime: Runtime, training: Training) -> bool:
    training.optimizer.zero_grad()
    training.forward()
    return runtime.ledger.holding


def stats_of_cuda(*, reserved_bytes: int, ooms: int = 3, current_bytes: int = 0) -> dict[str, Any]:
    """torch.cuda.memory_stats_as_nested_dict of a script whose peak was 1024 bytes."""
    return {
        "num_ooms": ooms,
        "num_alloc_retries": 4,
        "allocated_bytes": {"all": {"current": current_bytes, "peak": 1024}},
        "reserved_bytes": {"all": {"current": reserved_bytes}},
    }
