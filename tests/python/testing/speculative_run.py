"""A runtime with a fake client, for tests of speculative steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from fake_client import FakeClient
from memtide._optimizer_step.speculative_step import ComputedBatches
from memtide._telemetry.observer import Observer, SpeculativeBatches
from memtide._torch_hooks import runtime as runtimes


class Waits(Observer):
    """Records the counts of speculative batches that each step reports."""

    def __init__(self) -> None:
        self.steps: list[SpeculativeBatches] = []

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        assert waited_s >= 0
        self.steps.append(batches)

    def counted(self) -> int:
        return sum(step.counted for step in self.steps)


class Run:
    """A runtime with a fake client."""

    def __init__(
        self,
        *,
        lease_budget: int = 32,
        allowance: Callable[[], int] | None = None,
    ) -> None:
        self.client = FakeClient(lease_budget=lease_budget)
        self.waits = Waits()
        self.runtime = runtimes.start(
            self.client, self.waits, adopt_everything=True, allowance=allowance
        )

    def settle(self) -> None:
        """Returns when all speculative calls have ended."""
        calls = self.runtime.offloaded.calls
        all_here = threading.Barrier(calls.depth + 1, timeout=60)
        for _ in range(calls.depth):
            calls.start(all_here.wait)
        all_here.wait()

    def settle_before_steps(self) -> None:
        """Makes steps, and a GradScaler before them, wait for speculative calls, so that these
        count on a slow machine too."""
        speculative = self.runtime.offloaded.speculative
        take, unscaling = speculative.take, speculative.unscaling

        def settled(optimizer: torch.optim.Optimizer | None) -> ComputedBatches | None:
            self.settle()
            return take(optimizer)

        def settled_unscaling(*scaled: Any) -> AbstractContextManager[None]:
            self.settle()
            return unscaling(*scaled)

        speculative.take = settled  # type: ignore[method-assign]
        speculative.unscaling = settled_unscaling  # type: ignore[method-assign]
