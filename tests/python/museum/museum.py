"""A case of the museum: a script that trained wrongly elsewhere, and a fault of that kind.

Under memtide a case has no memory to spare: parameters, gradients and states are in chunks, the
(fake) daemon makes the steps, parts of them during backward, and all that autograd saves moves to
chunks, or is recomputed. The fake computes with torch's arithmetic, so the results are torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from activation_runs import forcing
from chosen_activations import same_bits
from memtide._activations.plan import BlockPlan, Choice
from memtide._capi.client import Places
from memtide._memory import adoption
from memtide._memory.activation_arena import ActivationArena
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.partition import Batch
from memtide._optimizer_step.speculative_step import Marks, SpeculativeSteps
from memtide._torch_hooks import runtime as runtimes
from speculative_run import Run
from torch import nn

# Four iterations find out what can be recomputed, and three when parts of steps are made early.
STEPS = 8
WIDTH, ROWS = 64, 16
_RECOMPUTED = BlockPlan(Choice.MOVE_TO_HOST, Choice.RECOMPUTE, Choice.RECOMPUTE)

Results = list[torch.Tensor]
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Case:
    """One bug of others."""

    train: Callable[[], Results]  # The script; it returns all that came out of its training.
    plant: Plant  # Breaks a guard of memtide's.
    # The message of the error that the fault ends in. Empty: in no error, but in other results.
    error: str = ""
    blocks: bool = False  # Whether the script has blocks, which are to be recomputed.
    alone: str = ""  # Why none of them is.

    def __str__(self) -> str:
        return self.train.__name__


@functools.cache
def plain(case: Case) -> Results:
    """The results of plain torch."""
    assert runtimes.current() is None
    results = case.train()
    assert all(tensor.isfinite().all() for tensor in results)
    return results


def under_memtide(case: Case) -> tuple[Results, Run]:
    """The results under memtide, and the run, which has ended. Parts of a step that can be made
    during backward are there when it returns, whatever comes between it and the step."""
    run = Run(lease_budget=16, allowance=lambda: 0)
    planner = forcing(_RECOMPUTED) if case.blocks else lambda _: None
    run.runtime.activations.planning.planner = planner
    backward = torch.Tensor.backward

    def settled(loss: torch.Tensor, **options: bool) -> None:
        backward(loss, **options)
        run.settle()

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "backward", settled)
            return case.train(), run
    finally:
        runtimes.stop()


def same(one: Results, other: Results) -> bool:
    """Whether two trainings gave the same bits, NaN included."""
    return len(one) == len(other) and all(map(same_bits, one, other))


def network(width: int = WIDTH, depth: int = 4) -> nn.Sequential:
    """Layers whose weights take four chunks each. Modules of torch's own are no blocks."""
    torch.manual_seed(0)
    layers = [(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*(module for pair in layers for module in pair))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def batch(width: int = WIDTH) -> torch.Tensor:
    return torch.randn(ROWS, width)


def train(
    optimizer: torch.optim.Optimizer, loss_of: Callable[[int], torch.Tensor], steps: int = STEPS
) -> Results:
    """The losses of a plain training loop. `loss_of`: of the step with this number, in forward."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def values(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Results:
    """Parameters, buffers and states."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [value for state in states for value in state.values() if value is not None]
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers(), *tensors)]


def believing_parts(patch: pytest.MonkeyPatch) -> None:
    """A part of a step that was made during backward counts, whatever has changed since."""

    def unmarked(_: SpeculativeSteps, batches: Sequence[Batch]) -> Marks:
        return {place: (0, 0) for each in batches for place in each.places}

    patch.setattr(SpeculativeSteps, "_marks_of", unmarked)


def moving_shared_tensors(patch: pytest.MonkeyPatch) -> None:
    """A tensor moves off the memory that others share with it."""

    def any_large_one(memory: ManagedMemory, tensor: torch.Tensor, users: int = 1) -> bool:
        return users == 1 and tensor.grad_fn is None and tensor.nbytes >= SMALLEST_BYTES

    patch.setattr(adoption, "_is_adoptable", any_large_one)


def iterations_ending_activations(patch: pytest.MonkeyPatch) -> None:
    """Activations are taken for dead when an optimizer has stepped."""

    def discard_all(arena: ActivationArena) -> None:
        arena._client.discard(Places(arena.places))

    patch.setattr(ActivationArena, "end_iteration", discard_all)
