"""Offloaded steps, in one process with a fake client in the daemon's place.

Memory that was never written is NaN there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import memtide
import pytest
import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from offloaded_loops import (
    assert_same,
    decay_groups,
    everything,
    network,
    plainly,
    train,
)
from torch import nn


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def stepped_as_plainly(work: Callable[[], list[torch.Tensor]]) -> FakeClient:
    """Asserts that four offloaded steps give the values of plain torch; returns the fake client,
    which has recorded the parts."""
    plain = plainly(work)
    client = FakeClient()
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    try:
        offloaded = work()
    finally:
        runtimes.stop()
    assert runtime.offloaded.parts.steps == client.committed_steps == 4
    assert_same(offloaded, plain)
    return client


@pytest.mark.parametrize(
    ("optimizer_type", "dtype", "weights", "moments"),
    [
        (memtide.AdamW, torch.bfloat16, "master", torch.float32),
        (memtide.AdamW, torch.bfloat16, "master", torch.bfloat16),
        (memtide.AdamW, torch.float16, "master", torch.float32),
        (memtide.AdamW, torch.bfloat16, "stochastic", torch.float32),
        (memtide.AdamW, torch.bfloat16, "stochastic", torch.bfloat16),
        (memtide.AdamW, torch.bfloat16, "nearest", torch.float32),
        (memtide.Lion, torch.float16, "master", torch.bfloat16),
        (memtide.Lion, torch.bfloat16, "stochastic", torch.float32),
    ],
    ids=str,
)
def test_two_bytes_are_stepped_to_the_same_values(
    optimizer_type: Any, dtype: torch.dtype, weights: str, moments: torch.dtype
) -> None:
    def work() -> list[torch.Tensor]:
        model = network(dtype)
        optimizer = optimizer_type(decay_groups(model), 0.01, weights=weights, moments=moments)
        train(model, optimizer)
        return everything(model, optimizer)

    assert stepped_as_plainly(work).begun_parts >= 4


def test_states_of_small_parameters_stay_beside_them(runtime: Runtime) -> None:
    model = nn.Linear(2, 400).bfloat16()
    optimizer = memtide.AdamW(model.parameters(), lr=0.01)  # Biases: 800 bytes, with masters 1600.
    runtime.offloaded.always = True
    for _ in range(3):
        model(torch.randn(2, 2).bfloat16()).sum().backward()
        optimizer.step()
    bias, weight = optimizer.state[model.bias], optimizer.state[model.weight]
    assert not runtime.memory.addresses.managed_in(bias)
    assert len(runtime.memory.addresses.managed_in(weight)) == 3
    assert not runtime.offloaded.parts.here


def test_states_in_chunks_that_are_changed_here_are_said_to_be(runtime: Runtime) -> None:
    flat = torch.zeros(1000)
    parameter = nn.Parameter(flat[:800])  # The parameter is not adopted; its states are.
    optimizer = torch.optim.AdamW([parameter], lr=0.01)
    runtime.offloaded.always = True
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert len(runtime.memory.addresses.managed_in(optimizer.state[parameter])) == 2
    assert "AdamW steps in the script's thread" in runtime.offloaded.parts.here


def test_bfloat16_is_stepped_as_bfloat16() -> None:
    def work() -> list[torch.Tensor]:
        model = network(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimizer)
        return everything(model, optimizer)

    assert stepped_as_plainly(work).begun_parts >= 4


def test_steps_are_here_while_everything_fits() -> None:
    client = FakeClient(lease_budget=500)
    runtimes.start(client, Observer(), adopt_everything=True)
    try:
        model = network()
        train(model, torch.optim.AdamW(model.parameters()))
    finally:
        runtimes.stop()
    assert client.begun_parts == 0


def frozen_and_absent() -> list[torch.Tensor]:
    model = network()
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    torch.manual_seed(3)
    for step in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(5, 24)).pow(2).sum().backward()
        if step % 2:
            model[2].weight.grad = None
        if step == 3:
            model[1].weight.requires_grad_(True)
        optimizer.step()
        schedule.step()
    return everything(model, optimizer)


def unlike_neighbours() -> list[torch.Tensor]:
    """Parameters that have no parts share chunks with those that have."""
    torch.manual_seed(4)
    model = nn.ParameterList(
        nn.Parameter(torch.randn(24, 24).to(torch.float64 if index % 3 == 1 else torch.float32))
        for index in range(9)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        sum(p.double().pow(3).sum() for p in model).backward()
        optimizer.step()
    return everything(model, optimizer)


def transposed_gradients() -> list[torch.Tensor]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        for index, p in enumerate(model.parameters()):
            torch.manual_seed(index)
            p.grad = torch.randn_like(p)
            if p.ndim == 2 and index % 4 == 0:
                p.grad = torch.randn(p.shape[1], p.shape[0]).t()
        optimizer.step()
    return everything(model, optimizer)


def scaled() -> list[torch.Tensor]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    torch.manual_seed(5)
    for _ in range(12):
        optimizer.zero_grad()
        scaler.scale(100 * model(torch.randn(5, 24)).pow(2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [*everything(model, optimizer), torch.tensor(scaler.get_scale())]


def hooked() -> list[torch.Tensor]:
    """A post-hook of the step reads the new parameters, and may change them."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    average = [p.detach().clone() for p in model.parameters()]

    def after(*_: object) -> None:
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.lerp_(p, 0.5)
                p.mul_(0.99)

    optimizer.register_step_post_hook(after)
    train(model, optimizer)
    return [*everything(model, optimizer), *average]


def changed_after_super() -> list[torch.Tensor]:
    """A class whose step does more after torch's."""

    class Shrinking(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.mul_(0.9)

    model = network()
    optimizer = Shrinking(model.parameters(), lr=0.01)
    train(model, optimizer)
    return everything(model, optimizer)


def with_closure() -> list[torch.Tensor]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for seed in range(3):

        def closure(seed: int = seed) -> torch.Tensor:
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss = model(torch.randn(5, 24)).pow(2).sum()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).detach())
    return [*everything(model, optimizer), *losses]


SITUATIONS = [
    frozen_and_absent,
    unlike_neighbours,
    transposed_gradients,
    scaled,
    hooked,
    changed_after_super,
    with_closure,
]


@pytest.mark.parametrize("work", SITUATIONS, ids=lambda work: work.__name__)
def test_training_is_as_without(work: Callable[[], list[torch.Tensor]]) -> None:
    plain = plainly(work)
    runtime = runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        offloaded = work()
    finally:
        runtimes.stop()
    assert_same(offloaded, plain)
    if work is changed_after_super:
        assert runtime.offloaded.parts.steps == 0  # The class's own step runs in this process.
    else:
        assert runtime.offloaded.parts.steps > 0


def test_state_dicts_go_to_plain_torch_and_back() -> None:
    def work(change: Callable[[], None]) -> list[torch.Tensor]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimizer)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        change()
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        train(model, optimizer, seed=2)
        return everything(model, optimizer)

    def start() -> None:
        runtimes.start(FakeClient(), Observer(), adopt_everything=True)

    plain = plainly(lambda: work(lambda: None))
    try:
        assert_same(work(start), plain)
        assert runtimes.current().offloaded.parts.steps == 4
        assert_same(work(runtimes.stop), plain)
    finally:
        runtimes.stop()


def test_twins_are_given_back_when_the_runtime_ends() -> None:
    client = FakeClient()
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    model = network()
    train(model, torch.optim.AdamW(model.parameters()))
    assert len(client.kinds) > runtime.memory.arenas.chunks()
    runtimes.stop()
    assert len(client.kinds) == runtime.memory.arenas.chunks()


def test_a_differentiable_step_stays_here(runtime: Runtime) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    runtime.offloaded.always = True
    for group in optimizer.param_groups:
        group["differentiable"] = True
    model(torch.randn(5, 24)).pow(2).sum().backward()
    with torch.no_grad():
        optimizer.step()
    assert runtime.client.begun_parts == 0
    assert runtime.offloaded.parts.here


def test_with_tensors_on_a_gpu_steps_have_parts_only_where_they_are_asked_for(
    runtime: Runtime,
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    runtime.offloaded.calls.has_plain_bits = False
    train(model, optimizer, steps=2)
    assert runtime.client.begun_parts == 0
    runtime.offloaded.skip_non_finite(skip=True)
    train(model, optimizer, steps=1)
    assert runtime.offloaded.parts.steps == 1
    runtime.offloaded.skip_non_finite(skip=False)
    runtime.offloaded.on_host = True
    train(model, optimizer, steps=1)
    assert runtime.offloaded.parts.steps == 2
    runtime.offloaded.on_host = False
    runtime.offloaded.always = True  # As with a named job.
    train(model, optimizer, steps=1)
    assert runtime.offloaded.parts.steps == 3


class Rounding(torch.optim.AdamW):
    """A class whose step does more after torch's."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.copy_(p.half())


@pytest.mark.parametrize(("kind", "lines"), [(torch.optim.AdamW, 0), (Rounding, 1)])
def test_steps_on_the_host_that_have_no_parts_are_said_to_be_on_the_gpu(
    kind: Any, lines: int, runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.offloaded.calls.has_plain_bits = False
    runtime.offloaded.on_host = True
    model = network()
    train(model, kind(model.parameters(), lr=0.01), steps=2)
    assert (runtime.offloaded.parts.steps == 0) == bool(lines)
    assert capsys.readouterr().err.count("Rounding has steps that cannot be made in parts") == lines


def test_a_negative_rate_is_stepped_as_by_torch() -> None:
    def work() -> list[torch.Tensor]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for group in optimizer.param_groups:
            group["lr"] = -0.01
        train(model, optimizer)
        return everything(model, optimizer)

    assert stepped_as_plainly(work).begun_parts >= 4
