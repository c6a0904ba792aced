"""Lease dispatch is off while all chunks are leased, with a fake client as on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._memory import device_oom
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

_WARM_UP_STEPS = 3
_ROOMY = 256  # A lease budget.


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    client = FakeClient(handles_faults=False, lease_budget=getattr(request, "param", _ROOMY))
    yield runtimes.start(client, Observer(), adopt_everything=True)
    runtimes.stop()


@pytest.fixture
def seen(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that lease dispatch sees."""
    names: list[str] = []
    original = LeaseDispatchMode.__torch_dispatch__

    def dispatch(mode: Any, func: Any, *args: Any) -> Any:
        names.append(str(func))
        return original(mode, func, *args)

    monkeypatch.setattr(LeaseDispatchMode, "__torch_dispatch__", dispatch)
    return names


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
        for _ in range(_WARM_UP_STEPS):
            self.step()
        return self


def chunks_of(runtime: Runtime) -> set[int]:
    return set(runtime.client.kinds)


def stack() -> list[Any]:
    return [
        torch._C._get_dispatch_stack_at(index)
        for index in range(torch._C._len_torch_dispatch_stack())
    ]


def begins_phase(runtime: Runtime, training: Training) -> bool:
    training.optimizer.zero_grad()
    training.forward()
    return runtime.ledger.holding


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
        FakeClient(handles_faults=False, lease_budget=_ROOMY), Observer(), adopt_everything=True
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
    assert runtime.manager.manages(weight.grad)
    training.warm_up()
    assert not runtime.manager.manages(weight.grad)
    assert Kind.GRADIENT not in runtime.client.kinds.values()


def test_gradients_that_a_script_zeroes_are_used_where_they_are(runtime: Runtime) -> None:
    training = Training()
    for _ in range(_WARM_UP_STEPS + 1):
        training.optimizer.zero_grad(set_to_none=False)
        training.forward().backward()
        covered = runtime.ledger.holding
        training.optimizer.step()
    assert covered
    assert runtime.manager.manages(training.model[0].weight.grad)


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
    assert runtime.manager.manages(weight)
    assert runtime.manager.manages(state["exp_avg"])


def test_a_chunk_that_is_new_is_leased_at_once(runtime: Runtime) -> None:
    training = Training().warm_up()
    before = chunks_of(runtime)

    def add() -> None:
        added = nn.Linear(128, 128)
        assert runtime.manager.manages(added.weight)
        assert chunks_of(runtime) > before
        assert runtime.client.in_use() == chunks_of(runtime)

    training.step(add)


@pytest.mark.parametrize("runtime", [40], indirect=True)
def test_what_is_new_and_does_not_fit_stays_in_ordinary_memory(runtime: Runtime) -> None:
    training = Training().warm_up()

    def add() -> None:
        assert runtime.ledger.holding
        large = nn.Linear(256, 256)  # 64 chunks.
        assert not runtime.manager.manages(large.weight)
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


def test_evaluation_and_backward_begin_no_phase(runtime: Runtime) -> None:
    training = Training().warm_up()
    with torch.no_grad():
        assert not begins_phase(runtime, training)
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
    for _ in range(_WARM_UP_STEPS + 1):
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
    assert runtime.manager.manages(state["exp_avg"])
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


def test_no_phase_begins_while_the_daemon_steps(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    monkeypatch.setattr(runtime.offloaded, "always", True)
    assert not begins_phase(runtime, training)


def test_no_phase_begins_for_a_named_job(runtime: Runtime) -> None:
    training = Training().warm_up()
    runtime._resumed_job = object()  # type: ignore[assignment]
    assert not begins_phase(runtime, training)


def stats_of_cuda(*, reserved_bytes: int, ooms: int = 3) -> dict[str, Any]:
    """torch.cuda.memory_stats_as_nested_dict of a script whose peak was 1024 bytes."""
    return {
        "num_ooms": ooms,
        "num_alloc_retries": 4,
        "allocated_bytes": {"all": {"peak": 1024}},
        "reserved_bytes": {"all": {"current": reserved_bytes}},
    }


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Memory statistics that a test sets, as if there were a GPU with 26 bytes free."""
    stats: dict[str, Any] = {}
    monkeypatch.setattr(device_oom, "gpu_module", lambda _type: torch.cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (26, 0))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _device: stats)
    return stats


@pytest.mark.parametrize(("reserved_bytes", "covered"), [(1125, False), (1126, True)])
def test_the_script_needs_headroom(
    runtime: Runtime, cuda: dict[str, Any], reserved_bytes: int, covered: bool
) -> None:
    training = Training().warm_up()
    cuda.update(stats_of_cuda(reserved_bytes=reserved_bytes))
    assert begins_phase(runtime, training) == covered


@pytest.mark.parametrize(("reserved_bytes", "covered"), [(-1, False), (0, True)])
def test_before_the_first_phase_it_needs_room_for_gradients_too(
    runtime: Runtime, cuda: dict[str, Any], reserved_bytes: int, covered: bool
) -> None:
    training = Training()
    training.step()
    gradient_bytes = runtime.manager.gradient_bytes
    assert gradient_bytes == 2 * training.model[0].weight.nbytes
    cuda.update(stats_of_cuda(reserved_bytes=1126 + gradient_bytes + reserved_bytes))
    training.step()
    assert begins_phase(runtime, training) == covered


def test_a_script_that_has_run_short_keeps_lease_dispatch(
    runtime: Runtime, cuda: dict[str, Any]
) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20))
    training.warm_up().step()
    assert begins_phase(runtime, training)
    training.optimizer.step()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20, ooms=4))
    assert not begins_phase(runtime, training)


def test_an_allocator_that_counts_nothing_keeps_lease_dispatch(
    runtime: Runtime, cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: Any) -> dict[str, Any]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", refuse)
    assert not begins_phase(runtime, Training().warm_up())


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


def test_a_peak_that_the_script_resets_counts(runtime: Runtime, cuda: dict[str, Any]) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20))
    training.warm_up()
    assert begins_phase(runtime, training)
    training.optimizer.step()
    cuda.update(stats_of_cuda(reserved_bytes=1024))
    cuda["allocated_bytes"] = {"all": {"peak": 10}}
    assert not begins_phase(runtime, training)


def test_a_phase_without_room_is_asked_for_once_an_iteration(
    runtime: Runtime, cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    cuda.update(stats_of_cuda(reserved_bytes=0))
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: calls.append(1) or (0, 0))
    for _ in range(3):
        training.step()
    assert len(calls) == 2, "in one of the three, gradients return to chunks"


def test_a_shortage_during_a_phase_evicts_nothing(runtime: Runtime) -> None:
    training = Training().warm_up()
    assert begins_phase(runtime, training)
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
    assert runtime._elastic is not None
    with pytest.raises(torch.OutOfMemoryError):
        runtime._elastic.retry(short, lambda: pytest.fail("it is not run again"))


def test_a_state_beside_a_full_hold_is_in_ordinary_memory(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    assert begins_phase(runtime, training)
    monkeypatch.setattr(runtime.ledger, "extend_hold", lambda _places: False)
    state = runtime.manager.new_state(torch.empty(1 << 20, device="meta"), 7)
    assert state.numel() == 1 << 20 and not runtime.manager.manages(state)


def test_uninstalling_in_a_phase_leaves_nothing() -> None:
    client = FakeClient(handles_faults=False, lease_budget=_ROOMY)
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    try:
        Training().warm_up().forward()
        assert runtime.ledger.holding
    finally:
        runtimes.stop()
    assert stack() == [] and client.in_use() == set() and not runtime.ledger.holding
