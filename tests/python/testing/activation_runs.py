"""Runs of a small transformer whose activations do not all fit."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

import torch
from fake_client import FakeClient
from memtide._activations.activations import Activations
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.planning import Profiled
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from torch import nn
from torch.nn import functional

WIDTH, TOKENS, BATCH, BLOCKS = 32, 32, 4, 4
INPUT_BYTES = BATCH * TOKENS * WIDTH * 4
SHORT_BYTES = 600_000  # Less than what all blocks save, and more than one saves twice.

_calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


class Block(nn.Module):
    """As in a transformer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    @property
    def calls(self) -> int:
        """Forward passes. They are not counted in the block: that would be an effect of it."""
        return _calls.get(self, 0)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        _calls[self] = self.calls + 1
        parts = self.attention(self.norm(value)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind())
        value = value + functional.dropout(mixed.transpose(1, 2).flatten(2), 0.2, self.training)
        return value + functional.dropout(
            self.narrow(functional.gelu(self.wide(value))), 0.2, self.training
        )


class Model(nn.Module):
    """Four blocks between a first and a last layer."""

    def __init__(self, make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(BLOCKS))
        self.last = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value).sin()
        for block in self.blocks:
            value = block(value)
        return self.last(value).exp()


def train(model: nn.Module, steps: int, micro_batches: int = 1, batch: int = BATCH) -> list[float]:
    """The losses of some steps, from a fixed seed on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss = model(torch.randn(batch, TOKENS, WIDTH)).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


@contextlib.contextmanager
def managed(
    allowance: int | Callable[[], int] = SHORT_BYTES, client: FakeClient | None = None
) -> Iterator[Activations]:
    """Activations under an allowance in bytes, without a budget for anything else."""
    runtime = runtimes.start(
        client or FakeClient(lease_budget=64),
        Observer(),
        adopt_everything=False,
        allowance=allowance if callable(allowance) else lambda: allowance,
    )
    assert runtime.activations is not None
    try:
        yield runtime.activations
    finally:
        runtimes.stop()


def forcing(
    *plans: BlockPlan, others: Choice = Choice.KEEP
) -> Callable[[Profiled], ActivationPlan]:
    """A planner that has one plan: for each block, or, if it is only one, for all."""
    blocks = plans * BLOCKS if len(plans) == 1 else plans
    return lambda _: ActivationPlan(blocks, others)
