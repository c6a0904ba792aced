"""Offloaded steps, in one process with a fake client in the daemon's place.

The fake's kernels compute with torch's arithmetic, so everything around it must give the same bits.
Memory that was never written is NaN there.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import memtide
import pytest
import torch
from fake_client import FakeClient
from memtide._capi.optimizer_step import Format, Rule
from memtide._optimizer_step.torch_functional import FORMATS
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from offloaded_loops import (
    OPTIMIZERS,
    assert_same,
    decay_groups,
    everything,
    network,
    plainly,
    train,
    trained_by,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("by_either")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def stepped_as_plainly(work: Callable[[], list[torch.Tensor]]) -> FakeClient:
    """Asserts that four offloaded steps give the values of plain torch; returns the fake client,
    which has recorded the step calls."""
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


@pytest.mark.usefixtures("by_the_daemon")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_offloaded_steps_to_the_same_values(name: str) -> None:
    client = stepped_as_plainly(functools.partial(trained_by, name))
    assert sum(len(pieces) for _, pieces, _ in client.step_calls) > 4 * 8


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
    optimizer_type: Any, dtype: torch.dtype, weights: str, moments: torch.dtype, by_either: str
) -> None:
    def work() -> list[torch.Tensor]:
        model = network(dtype)
        optimizer = optimizer_type(decay_groups(model), 0.01, weights=weights, moments=moments)
        train(model, optimizer)
        return everything(model, optimizer)

    client = stepped_as_plainly(work)
    if by_either == "torch":
        assert client.parts and not client.step_calls
        return
    (formats,) = {
        (options.rounded_format, options.parameter_format, options.rounding_seed != 0)
        for options, pieces, _ in client.step_calls
        if pieces
    }
    expected = {
        "master": (FORMATS[dtype], Format.FLOAT32, False),
        "stochastic": (Format.NONE, Format.BFLOAT16, True),
        "nearest": (Format.NONE, Format.BFLOAT16, False),
    }
    assert formats == expected[weights]


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


@pytest.mark.usefixtures("by_the_daemon")
def test_bfloat16_is_stepped_as_bfloat16(runtime: Runtime) -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    runtime.offloaded.always = True
    train(model, optimizer)
    formats = {
        (options.parameter_format, options.gradient_format, options.state_format)
        for options, _, _ in runtime.client.step_calls
    }
    assert formats == {(2, 2, 2)}
    assert runtime.offloaded.parts.steps == 4
    assert all(p.isfinite().all() for p in model.parameters())


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
    """Parameters that only the client can step share chunks with those of the daemon."""
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


@pytest.mark.usefixtures("by_the_daemon")
def test_the_daemon_is_told_which_update_it_is(runtime: Runtime) -> None:
    model = network()
    runtime.offloaded.always = True
    for optimizer, rule in (
        (torch.optim.Adam(model.parameters()), Rule.ADAM),
        (torch.optim.Adam(model.parameters(), decoupled_weight_decay=True), Rule.ADAMW),
        (torch.optim.AdamW(model.parameters()), Rule.ADAMW),
        (torch.optim.SGD(model.parameters()), Rule.SGD),
        (torch.optim.Adagrad(model.parameters()), Rule.ADAGRAD),
    ):
        runtime.client.step_calls.clear()
        train(model, optimizer, steps=2)
        assert {options.rule for options, _, _ in runtime.client.step_calls} == {rule}


@pytest.mark.parametrize("options", [{"differentiable": True}, {"lr": -0.01}], ids=str)
def test_what_torch_computes_and_the_daemon_does_not_stays_here(
    options: dict[str, Any], runtime: Runtime
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    runtime.offloaded.always = True
    for group in optimizer.param_groups:
        group.update(options)
    model(torch.randn(5, 24)).pow(2).sum().backward()
    with torch.no_grad():
        optimizer.step()
    assert runtime.client.step_calls == []
