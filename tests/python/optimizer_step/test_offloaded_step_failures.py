"""Offloaded steps that are refused, fail, are skipped or find no room, with a fake client."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import InvalidArgument, NoRoom, ResourceExhausted, Unavailable
from offloaded_loops import (
    MORE_OPTIMIZERS,
    OPTIMIZERS,
    assert_same,
    decay_groups,
    everything,
    network,
    plainly,
    train,
    trained_by,
)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def test_shadow_chunks_get_the_room_of_chunks_that_hold_no_tensor(runtime: Runtime) -> None:
    model = network()
    optimizer = OPTIMIZERS["adamw groups"](model)
    train(model, optimizer, steps=2)
    optimizer.zero_grad()
    model(torch.randn(5, 24)).pow(2).sum().backward()
    offloaded, committed = runtime.offloaded, runtime.client.committed_steps
    offloaded.speculative.forget()
    offloaded.parts.shadows.free()
    held = []
    with pytest.raises(NoRoom):
        while True:
            held.append(runtime.memory.allocator.activation([CHUNK_BYTES], [1], torch.uint8))
    held.clear()
    optimizer.step()
    assert offloaded.allowed
    assert runtime.client.committed_steps == committed + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_options_that_are_not_finite_are_stepped_as_by_torch(value: float) -> None:
    def work() -> list[torch.Tensor]:
        model = network()
        optimizer = torch.optim.AdamW(decay_groups(model), lr=0.01)
        train(model, optimizer, steps=2)
        optimizer.param_groups[1]["lr"] = value
        optimizer.zero_grad()
        model(torch.randn(5, 24)).pow(2).sum().backward()
        optimizer.step()
        return everything(model, optimizer)

    plain = plainly(work)
    client = FakeClient()
    runtimes.start(client, Observer(), adopt_everything=True)
    try:
        offloaded = work()
    finally:
        runtimes.stop()
    assert client.committed_steps == 3
    for ours, theirs in zip(offloaded, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("where", [0, 1])  # A weight, which is in a chunk; a bias, which is not.
@pytest.mark.parametrize("name", ["adamw groups", "sgd nesterov", "adagrad", "nadam", "asgd"])
def test_steps_from_gradients_that_are_not_finite_are_skipped_whole(
    name: str, where: int, runtime: Runtime
) -> None:
    model = network()
    optimizer = {**OPTIMIZERS, **MORE_OPTIMIZERS}[name](model)
    offloaded = runtime.offloaded
    offloaded.skip_non_finite(skip=True)
    train(model, optimizer, steps=2)
    before = everything(model, optimizer)
    optimizer.zero_grad()
    model(torch.randn(5, 24)).pow(2).sum().backward()
    spoilt = list(model.parameters())[where]
    spoilt.grad.view(-1)[3] = math.nan
    optimizer.step()
    assert_same(everything(model, optimizer), before)
    assert (offloaded.parts.steps, offloaded.skipped) == (2, 1)
    train(model, optimizer, steps=1)
    assert (offloaded.parts.steps, offloaded.skipped) == (3, 1)
    offloaded.skip_non_finite(skip=False)
    spoilt.grad.view(-1)[3] = math.nan
    optimizer.step()
    assert spoilt.isnan().any()


@pytest.mark.parametrize("spoilt", ["weights", "biases"])
@pytest.mark.parametrize("without_parts", ["some", "all"])
def test_what_is_not_in_parts_is_skipped_with_the_step(
    without_parts: str, spoilt: str, runtime: Runtime
) -> None:
    model = network()
    groups = decay_groups(model)
    for group in groups if without_parts == "all" else groups[1:]:
        group["differentiable"] = True
    optimizer = torch.optim.Adam(groups, lr=0.01)
    runtime.offloaded.skip_non_finite(skip=True)
    train(model, optimizer, steps=2)
    before = everything(model, optimizer)
    optimizer.zero_grad()
    model(torch.randn(5, 24)).pow(2).sum().backward()
    groups[spoilt == "biases"]["params"][0].grad.view(-1)[3] = math.inf
    optimizer.step()
    assert_same(everything(model, optimizer), before)
    assert runtime.offloaded.skipped == 1


@pytest.mark.parametrize("call", [1, 3])
def test_a_step_that_fails_on_the_way_leaves_everything_as_it_was(
    call: int, runtime: Runtime
) -> None:
    model = network()
    optimizer = torch.optim.SGD(decay_groups(model), lr=0.01, momentum=0.9)
    runtime.offloaded.always = True
    model(torch.randn(5, 24)).pow(2).sum().backward()
    parameters = list(model.parameters())
    assert 0 < sum(map(runtime.memory.addresses.manages, parameters)) < len(parameters)
    before = [p.detach().clone() for p in parameters]
    runtime.client.fail_part[call] = InvalidArgument("on purpose")
    with pytest.raises(InvalidArgument, match="on purpose"):
        optimizer.step()
    assert_same([p.detach() for p in parameters], before)
    assert runtime.client.committed_steps == 0
    assert not any("momentum_buffer" in optimizer.state[p] for p in parameters)
    optimizer.step()
    assert runtime.client.committed_steps == 1
    assert not any(torch.equal(p, old) for p, old in zip(parameters, before, strict=True))


def test_what_a_failed_step_had_made_here_before_is_undone(runtime: Runtime) -> None:
    model = network()
    optimizer = torch.optim.Adagrad(decay_groups(model)[::-1], lr=0.01)  # Biases come first.
    runtime.offloaded.always = True
    train(model, optimizer)
    before = everything(model, optimizer)
    runtime.offloaded.speculative.forget()
    runtime.client.fail_part[runtime.client.begun_parts + 1] = InvalidArgument("on purpose")
    with pytest.raises(InvalidArgument, match="on purpose"):
        optimizer.step()
    assert_same(everything(model, optimizer), before)


@pytest.mark.parametrize("name", ["adamw groups", "sgd nesterov", "adagrad"])
@pytest.mark.parametrize("call", [1, 4, 20])
def test_without_room_for_twins_steps_are_made_here_for_good(
    name: str, call: int, capsys: pytest.CaptureFixture[str]
) -> None:
    work = functools.partial(trained_by, name)
    plain = plainly(work)
    client = FakeClient()
    fail_from(client, call)
    runtimes.start(client, Observer(), adopt_everything=True)
    try:
        offloaded = work()
        chunks = runtimes.current().memory.arenas.chunks()
        assert len(client.kinds) == chunks  # No shadow chunk is left.
    finally:
        runtimes.stop()
    assert_same(offloaded, plain)
    assert client.begun_parts >= call
    printed = capsys.readouterr().err
    assert (
        printed.count("optimizers step in the script's thread from now on: the disk is full") == 1
    )


def test_nothing_is_changed_here_before_the_commit(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    optimizer = torch.optim.SGD(decay_groups(model), lr=0.01, momentum=0.9)
    runtime.offloaded.always = True
    model(torch.randn(5, 24)).pow(2).sum().backward()
    large = [p for p in model.parameters() if runtime.memory.addresses.manages(p)]
    before = [p.detach().clone() for p in large]
    fail_from(runtime.client, 1)
    with monkeypatch.context() as broken:
        broken.setattr(runtime.client, "commit", fail_to_commit)
        for _ in range(2):
            with pytest.raises(Unavailable, match="on purpose"):
                optimizer.step()
            assert_same([p.detach() for p in large], before)
            assert not any("momentum_buffer" in optimizer.state[p] for p in large)
    optimizer.step()
    assert runtime.client.committed_steps == 1
    assert runtime.offloaded.parts.here
    assert not any(torch.equal(p, old) for p, old in zip(large, before, strict=True))


def fail_from(client: FakeClient, part: int) -> None:
    """Parts find no room, from this one on: also with fewer chunks at a time."""
    full = ResourceExhausted("the disk is full")
    client.fail_part.update(dict.fromkeys(range(part, part + 1000), full))


def fail_to_commit(*_arguments: object, keep_old_content: bool, **_options: bool) -> None:
    raise Unavailable(f"on purpose, keep_old_content {keep_old_content}")
