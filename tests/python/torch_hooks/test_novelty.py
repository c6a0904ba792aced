"""Operations, modules and inputs that are new in a script on a GPU, with a fake client."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from lease_dispatched import Training
from memtide._memory import novelty
from memtide._torch_hooks.runtime import Runtime
from torch import nn

LEASE_BUDGET = 20  # Too few for a phase in which nothing is dispatched.


@pytest.fixture
def training(runtime: Runtime) -> Training:
    """One that has warmed up, so that only what is new is protected from."""
    made = Training()
    made.spare = nn.Linear(64, 64)  # type: ignore[attr-defined]
    for _ in range(4):
        made.step()
    assert runtime.client.protections == 0 and not runtime.ledger.holding
    return made


class _Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def _without_gradients(training: Training) -> torch.Tensor:
    with torch.no_grad():
        return training.forward()


def _in_a_thread(training: Training) -> None:
    thread = threading.Thread(target=training.input.erf)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "new",
    [
        lambda training: training.input.erf(),
        lambda training: _Doubling()(training.input),
        lambda training: training.spare(training.input),
        lambda training: training.model(training.input[:1]),
        lambda training: training.model.eval()(training.input),
        _without_gradients,
        _in_a_thread,
    ],
    ids=["operation", "class", "module", "shape", "eval", "no_grad", "thread"],
)
def test_something_new_is_protected_from_once(
    runtime: Runtime, training: Training, new: Callable[[Training], object]
) -> None:
    new(training)
    assert runtime.client.protections == 1
    training.model.train()
    training.step()
    new(training)
    training.step()
    assert runtime.client.protections == 1


def test_an_iteration_is_protected_once(runtime: Runtime, training: Training) -> None:
    training.input.erf()
    training.input.erfc()
    assert runtime.client.protections == 1
    training.step()
    training.input.sinh()
    assert runtime.client.protections == 2


def test_shapes_within_a_module_may_vary(runtime: Runtime, training: Training) -> None:
    class Experts(nn.Module):
        rows = 4

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return training.model(x[: self.rows])

    experts = Experts()
    experts(training.input)
    before = runtime.client.protections
    training.step()
    for experts.rows in (3, 2, 1):
        experts(training.input)
        training.step()
    assert runtime.client.protections == before


def test_shapes_that_vary_without_end_say_nothing(
    runtime: Runtime, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty, "_MOST_INPUTS", 3)
    for rows in (3, 2, 1):
        training.model(training.input[:rows])
        training.step()
    assert runtime.client.protections == 2
