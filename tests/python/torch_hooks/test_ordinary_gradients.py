"""Gradients stay in ordinary memory while everything fits, and come to chunks when it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.around_step import ordinary_gradients
from memtide._torch_hooks.around_step.stepping import Stepping
from memtide._torch_hooks.runtime import Runtime
from torch import nn


@pytest.fixture(params=[64])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    stepping = Stepping(leaves_gradients=True)
    client = FakeClient(lease_budget=request.param)
    yield runtimes.start(client, Observer(), adopt_everything=True, stepping=stepping)
    runtimes.stop()


def in_chunks(runtime: Runtime, model: nn.Linear) -> bool:
    """Runs both passes, and returns whether its gradient is in chunks."""
    model(torch.ones(2, 32)).sum().backward()
    assert model.weight.grad is not None
    return runtime.memory.addresses.manages(model.weight.grad)


def step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_stay_once_there_is_an_optimizer(runtime: Runtime) -> None:
    model = nn.Linear(32, 32)
    assert in_chunks(runtime, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(optimizer)
    for _ in range(3):
        assert not in_chunks(runtime, model)
        step(optimizer)
    assert runtime.memory.arenas.gradients.chunks == 0


@pytest.mark.parametrize("runtime", [3], indirect=True)
def test_gradients_without_room_are_in_chunks(runtime: Runtime) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 32)).sum().backward()
        assert runtime.memory.addresses.manages(model[1].weight.grad)
        step(optimizer)


@pytest.mark.parametrize("runtime", [7], indirect=True)
def test_layers_that_are_trained_later_are_counted(runtime: Runtime) -> None:
    head, rest = nn.Linear(32, 32), nn.Linear(32, 128)
    rest.requires_grad_(False)
    optimizer = torch.optim.SGD([*head.parameters(), *rest.parameters()], lr=0.1)
    for _ in range(2):
        step(optimizer)
        assert not in_chunks(runtime, head)
    rest.requires_grad_(True)
    step(optimizer)
    assert in_chunks(runtime, head), "five chunks of parameters, and five of gradients"


@pytest.mark.parametrize("runtime", [7], indirect=True)
def test_gradients_of_another_optimizer_are_counted(runtime: Runtime) -> None:
    model, other = nn.Linear(32, 32), nn.Linear(32, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert other.weight.requires_grad
    for _ in range(2):
        assert in_chunks(runtime, model)
        step(optimizer)


def test_gradients_beyond_an_eighth_of_free_memory_are_in_chunks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(32, 32)
    monkeypatch.setattr(ordinary_gradients, "available_host_bytes", lambda: 8 * 4096 - 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert in_chunks(runtime, model)
    monkeypatch.setattr(ordinary_gradients, "available_host_bytes", lambda: 8 * 4096)
    step(optimizer)
    assert not in_chunks(runtime, model)


def test_gradients_that_are_kept_stay_where_they_are(runtime: Runtime) -> None:
    model = nn.Linear(32, 32)
    for _ in range(3):
        assert in_chunks(runtime, model)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.zero_grad(set_to_none=False)
