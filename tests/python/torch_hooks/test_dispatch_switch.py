"""Lease dispatch is off while all chunks are leased, with a fake client as on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from lease_dispatched import ROOMY, WARM_UP_STEPS, Training, begins_phase, chunks_of, stack
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


def test_from_forward_to_step_no_operation_is_seen_once_all_fits(
    runtime: Runtime, seen: list[str]
) -> None:
    training = Training()
    training.step()
    assert seen
    training.warm_up()
    training.optimizer.zero_grad()
    seen.clear()
    training.forward().backward()
    training.optimizer.step()
    assert seen == []
    training.input.add(1)
    assert seen == ["aten.add.Tensor"]


def test_results_are_those_of_plain_torch_to_the_bit() -> None:
    plain = _losses()
    runtimes.start(
        FakeClient(handles_faults=False, lease_budget=ROOMY), Observer(), adopt_everything=True
    )
    try:
        assert _losses() == plain
    finally:
        runtimes.stop()


def _losses() -> list[float]:
    training = Training()
    return [training.step() for _ in range(8)]


def test_every_chunk_is_leased_while_no_operation_is_seen_and_none_afterwards(
    runtime: Runtime,
) -> None:
    training = Training().warm_up()
    leased: list[bool] = []
    watch = lambda *_: leased.append(runtime.client.in_use() == chunks_of(runtime))  # noqa: E731
    training.model[0].weight.register_hook(watch)
    training.optimizer.register_step_post_hook(watch)
    training.step(watch)
    assert leased == [True] * 3
    assert runtime.client.in_use() == set()


def test_gradients_stay_where_torch_makes_them_and_their_chunks_are_freed(
    runtime: Runtime,
) -> None:
    training = Training()
    training.step()
    weight = training.model[0].weight
    assert runtime.memory.addresses.manages(weight.grad)
    training.warm_up()
    assert not runtime.memory.addresses.manages(weight.grad)
    assert Kind.GRADIENT not in runtime.client.kinds.values()


def test_gradients_that_a_script_zeroes_are_used_where_they_are(runtime: Runtime) -> None:
    training = Training()
    for _ in range(WARM_UP_STEPS + 1):
        training.optimizer.zero_grad(set_to_none=False)
        training.forward().backward()
        covered = runtime.ledger.holding
        training.optimizer.step()
    assert covered
    assert runtime.memory.addresses.manages(training.model[0].weight.grad)


def test_module_hooks_are_out_in_lean_phases_and_back_after_them(runtime: Runtime) -> None:
    training = Training().warm_up()
    before = list(torch_modules._global_forward_pre_hooks.values())
    during: list[int] = []
    training.step(lambda: during.append(len(torch_modules._global_forward_pre_hooks)))
    assert during == [0]
    assert list(torch_modules._global_forward_pre_hooks.values()) == before


def test_an_observer_that_samples_keeps_the_module_hooks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    monkeypatch.setattr(Observer, "sampling", True)
    during: list[int] = []
    training.step(lambda: during.append(len(torch_modules._global_forward_pre_hooks)))
    assert during == [1]


def test_what_took_the_place_of_adopted_tensors_is_adopted_some_iterations_later(
    runtime: Runtime,
) -> None:
    training = Training().warm_up()
    weight = training.model[2].weight
    weight.data = weight.detach().clone()
    state = training.optimizer.state[weight]
    state["exp_avg"] = state["exp_avg"].clone()
    for _ in range(16):
        training.step()
    assert runtime.memory.addresses.manages(weight)
    assert runtime.memory.addresses.manages(state["exp_avg"])


def test_a_chunk_that_is_new_is_leased_at_once(runtime: Runtime) -> None:
    training = Training().warm_up()
    before = chunks_of(runtime)

    def add() -> None:
        added = nn.Linear(128, 128)
        assert runtime.memory.addresses.manages(added.weight)
        assert chunks_of(runtime) > before
        assert runtime.client.in_use() == chunks_of(runtime)

    training.step(add)


@pytest.mark.parametrize("runtime", [40], indirect=True)
def test_what_is_new_and_does_not_fit_stays_in_ordinary_memory(runtime: Runtime) -> None:
    training = Training().warm_up()

    def add() -> None:
        assert runtime.ledger.holding
        large = nn.Linear(256, 256)  # 64 chunks.
        assert not runtime.memory.addresses.manages(large.weight)
        assert large.weight.sum().isfinite()
        assert large.weight.grad is None

    training.step(add)
    assert runtime.client.in_use() == set()
    training.warm_up()
    assert begins_phase(runtime, training), "the chunks that did not fit are freed"


def test_a_smaller_budget_brings_lease_dispatch_back(runtime: Runtime, seen: list[str]) -> None:
    training = Training().warm_up()
    runtime.client.lease_budget = len(chunks_of(runtime)) - 1
    training.step()
    training.optimizer.zero_grad()
    seen.clear()
    training.forward()
    assert seen and not runtime.ledger.holding


class Own(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_that_the_script_enters_meanwhile_is_left_by_the_script(runtime: Runtime) -> None:
    training = Training().warm_up()
    (net,) = stack()
    loss = training.forward()
    assert stack() == []
    with Own() as own:
        loss.backward()
        training.optimizer.step()
        assert stack() == [net, own]
    assert stack() == [net]


def test_a_mode_that_was_entered_before_keeps_lease_dispatch_on(runtime: Runtime) -> None:
    training = Training().warm_up()
    with Own():
        assert not begins_phase(runtime, training)


def test_backward_begins_no_phase(runtime: Runtime) -> None:
    training = Training().warm_up()
    outside = torch.ones(4, 64, requires_grad=True) * 1
    began: list[bool] = []

    @torch.enable_grad()
    def recompute(_gradient: torch.Tensor) -> None:
        began.append(begins_phase(runtime, training))

    outside.register_hook(recompute)
    outside.sum().backward()
    assert began == [False]


def test_recomputation_in_backward_is_covered(runtime: Runtime, seen: list[str]) -> None:
    training = Training()
    whole = training.model
    for _ in range(WARM_UP_STEPS + 1):
        training.optimizer.zero_grad()
        seen.clear()
        hidden = whole[0](training.input)
        checkpoint(whole[1:], hidden, use_reentrant=True).mean().backward()
        training.optimizer.step()
    assert seen == [] and stack() != []


def test_another_thread_has_lease_dispatch_always(runtime: Runtime, seen: list[str]) -> None:
    training = Training().warm_up()
    began: list[bool] = []
    thread = threading.Thread(target=lambda: began.append(begins_phase(runtime, training)))
    thread.start()
    thread.join()
    assert began == [False]
    training.forward()
    seen.clear()
    thread = threading.Thread(target=training.model[0].weight.detach().neg)
    thread.start()
    thread.join()
    assert "aten.neg.default" in seen and runtime.ledger.holding


def test_another_thread_does_not_end_a_phase(runtime: Runtime) -> None:
    training, other = Training().warm_up(), Training().warm_up()
    training.forward()
    thread = threading.Thread(target=other.optimizer.step)
    thread.start()
    thread.join()
    assert runtime.ledger.holding and stack() == []


def test_states_of_a_second_optimizer_are_born_in_chunks(runtime: Runtime) -> None:
    training = Training().warm_up()
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-2)
    training.step()
    state = training.optimizer.state[training.model[0].weight]
    assert runtime.memory.addresses.manages(state["exp_avg"])
    assert runtime.client.in_use() == set()


def test_a_step_that_raises_ends_the_phase(runtime: Runtime) -> None:
    training = Training().warm_up()
    (net,) = stack()

    class Raising(Exception):
        pass

    def fail(*_: Any) -> None:
        raise Raising

    handle = training.optimizer.register_step_pre_hook(fail)
    with pytest.raises(Raising):
        training.step()
    handle.remove()
    assert stack() == [net] and runtime.client.in_use() == set()
    assert training.step() > 0


def test_no_phase_begins_while_the_offloaded_steps(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    monkeypatch.setattr(runtime.offloaded, "always", True)
    assert not begins_phase(runtime, training)


def test_no_phase_begins_for_a_named_job(runtime: Runtime) -> None:
    training = Training().warm_up()
    runtime.resumed_job = object()  # type: ignore[assignment]
    assert not begins_phase(runtime, training)


def test_steps_within_backward_keep_lease_dispatch(runtime: Runtime) -> None:
    training = Training().warm_up()
    one_each = [torch.optim.SGD([p], lr=0.1) for p in training.model.parameters()]

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for parameter, optimizer in zip(training.model.parameters(), one_each, strict=True):
        parameter.register_post_accumulate_grad_hook(lambda _, own=optimizer: step(own))
    modes = stack()
    for _ in range(6):
        training.forward().backward()
        assert runtime.ledger.holding or stack() == modes
    training.optimizer.step()
    assert stack() == modes


def test_uninstalling_in_a_phase_leaves_nothing() -> None:
    client = FakeClient(handles_faults=False, lease_budget=ROOMY)
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    try:
        Training().warm_up().forward()
        assert runtime.ledger.holding
    finally:
        runtimes.stop()
    assert stack() == [] and client.in_use() == set() and not runtime.ledger.holding


def _stop_early(training: Training) -> None:
    """An iteration that ends before its step, as where a script has caught an error."""
    training.optimizer.zero_grad()
    training.forward()
    assert stack() == []


@pytest.mark.parametrize(
    "go_on",
    [
        lambda training: training.model.eval(),
        lambda training: training.model.train(),
        lambda training: training.optimizer.zero_grad(),
    ],
    ids=["eval", "train", "zero_grad"],
)
def test_a_phase_ends_where_a_script_leaves_its_iteration(
    runtime: Runtime, go_on: Callable[[Training], None]
) -> None:
    training = Training().warm_up()
    modes = stack()
    _stop_early(training)
    go_on(training)
    assert stack() == modes and runtime.client.in_use() == set()
    assert training.step() > 0
    assert begins_phase(runtime, training)


def test_gradients_may_be_zeroed_between_forward_and_backward(runtime: Runtime) -> None:
    training = Training()
    covered: list[bool] = []
    for _ in range(WARM_UP_STEPS + 1):
        loss = training.forward()
        training.optimizer.zero_grad()
        covered.append(runtime.ledger.holding)
        loss.backward()
        training.optimizer.step()
    assert covered[-1]


def test_the_second_of_two_optimizers_steps_on_leased_chunks(
    runtime: Runtime, seen: list[str]
) -> None:
    first, second = Training().warm_up(), Training().warm_up()
    first.step()
    (first.forward() + second.forward()).backward()
    assert runtime.ledger.holding
    first.optimizer.step()
    seen.clear()
    runtime.client.acquired.clear()
    second.optimizer.step()
    leased = {place for places, _ in runtime.client.acquired for place in places}
    assert seen and set(runtime.memory.addresses.span_places(second.model[0].weight)) <= leased
    assert runtime.client.in_use() == set()
