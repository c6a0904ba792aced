"""The tensors that are adopted, in one process without a daemon."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._memory import adoption, left_memory
from memtide._memory.duplicates import Duplicates
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from recording_gpu import RecordingGpu


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def manages(runtime: Runtime, *tensors: torch.Tensor | None) -> list[bool]:
    return [tensor is not None and runtime.memory.addresses.manages(tensor) for tensor in tensors]


def test_parameters_gradients_and_state_are_in_chunks_of_their_kind(runtime: Runtime) -> None:
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    weight = model.weight
    state = optimizer.state[weight]
    assert (
        manages(runtime, weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]) == [True] * 4
    )
    kinds = {
        tensor.data_ptr(): {
            runtime.client.kinds[place] for place in runtime.memory.addresses.span_places(tensor)
        }
        for tensor in (weight, weight.grad, state["exp_avg"])
    }
    assert list(kinds.values()) == [{Kind.PARAMETER}, {Kind.GRADIENT}, {Kind.OPTIMIZER_STATE}]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD], ids=["adam", "sgd"])
def test_states_cross_the_borders_of_chunks_where_their_parameters_do(
    runtime: Runtime, make: type[torch.optim.Optimizer]
) -> None:
    model = torch.nn.Sequential(
        *(torch.nn.Linear(48, 48) for _ in range(5))
    )  # 9 KiB each, in chunks of 4 KiB.
    more = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), **more)
    model(torch.randn(4, 48)).sum().backward()
    optimizer.step()
    chunk_bytes = runtime.memory.addresses.chunk_bytes
    weights = [p for p in model.parameters() if p.numel() > 1024]
    of_parameters = [weight.data_ptr() % chunk_bytes for weight in weights]
    for name in ("exp_avg", "exp_avg_sq") if make is torch.optim.Adam else ("momentum_buffer",):
        states = [optimizer.state[weight][name] for weight in weights]
        assert manages(runtime, *states) == [True] * 5
        assert [state.data_ptr() % chunk_bytes for state in states] == of_parameters


def test_states_that_were_loaded_lie_in_rows_too(runtime: Runtime) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(48, 48, bias=False) for _ in range(5)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 48)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.state.clear()
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(saved)
    again.step()
    chunk_bytes = runtime.memory.addresses.chunk_bytes
    for name in ("exp_avg", "exp_avg_sq"):
        offsets = [again.state[p][name].data_ptr() % chunk_bytes for p in model.parameters()]
        assert offsets == [p.data_ptr() % chunk_bytes for p in model.parameters()]


def test_chunks_that_were_expected_and_not_needed_are_given_back(runtime: Runtime) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(48, 48, bias=False) for _ in range(5)))
    optimizer = torch.optim.Adam(model.parameters())
    first = model[0]
    first(torch.randn(4, 48)).sum().backward()  # Only the first module has gradients.
    optimizer.step()
    # Parameters, one gradient, its two states.
    assert runtime.memory.arenas.chunks() == 12 + 3 + 2 * 3


def test_small_parameters_stay(runtime: Runtime) -> None:
    model = torch.nn.Linear(32, 32)
    assert manages(runtime, model.weight, model.bias) == [True, False]


def test_what_shares_its_bytes_stays(runtime: Runtime) -> None:
    flat = torch.zeros(2, 1024)
    parts = [torch.nn.Parameter(flat[0]), torch.nn.Parameter(flat[1])]
    torch.nn.ParameterList(parts)
    held = torch.zeros(1024)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(held)
    assert manages(runtime, *parts, module.weight) == [False] * 3
    held.fill_(3)
    assert module.weight.sum().item() == 3072


def test_what_was_shared_moves_when_it_is_no_longer(runtime: Runtime) -> None:
    held = torch.zeros(32, 32)
    module = torch.nn.Linear(32, 32)
    module.weight = torch.nn.Parameter(held)
    del held
    module(torch.randn(2, 32))
    assert manages(runtime, module.weight) == [True]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(1024, device="meta"),
        torch.eye(64).to_sparse(),
        torch.zeros(1024).share_memory_(),
        torch.nn.parameter.UninitializedParameter(),
    ],
    ids=["meta", "sparse", "shared memory", "lazy"],
)
def test_other_tensors_are_left_alone(runtime: Runtime, tensor: torch.Tensor) -> None:
    module = torch.nn.Module()
    module.weight = (
        tensor
        if isinstance(tensor, torch.nn.Parameter)
        else torch.nn.Parameter(tensor, requires_grad=False)
    )
    assert runtime.memory.arenas.chunks() == 0


def test_a_sparse_state_stays_where_it_is(runtime: Runtime) -> None:
    embedding = torch.nn.Embedding(512, 32, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.arange(512)).sum().backward()
        optimizer.step()
    momentum = optimizer.state[embedding.weight]["momentum_buffer"]
    assert momentum.is_sparse
    assert manages(runtime, embedding.weight, momentum) == [True, False]


def _adopted_parameter(runtime: Runtime) -> torch.Tensor:
    module = torch.nn.Linear(32, 32)
    module.weight.data = torch.ones(32, 32)
    with torch.inference_mode():
        module(torch.ones(2, 32))
    assert manages(runtime, module.weight) == [True]
    return module.weight


def _adopted_gradient(runtime: Runtime) -> torch.Tensor:
    weight = torch.nn.Linear(32, 32).weight
    weight.grad = torch.ones(32, 32)
    with torch.inference_mode():
        assert adoption.adopt_gradient(runtime.memory, weight)
    return weight.grad


def _adopted_state(runtime: Runtime) -> torch.Tensor:
    weight = torch.nn.Linear(32, 32).weight
    state = {"momentum": torch.ones(32, 32)}
    with torch.inference_mode():
        adoption.adopt_state_of(runtime.memory, weight, state)
    assert manages(runtime, state["momentum"]) == [True]
    return state["momentum"]


def _adopted_shard(runtime: Runtime) -> torch.Tensor:
    shard = torch.ones(32, 32)
    with torch.inference_mode():
        (moved,) = adoption.adopt_together(runtime.memory, [shard], Kind.PARAMETER)
    return moved


def _adopted_shard_of_a_gradient(runtime: Runtime) -> torch.Tensor:
    gradient = SimpleNamespace(_local_tensor=torch.ones(32, 32))
    parameter: Any = SimpleNamespace(grad=gradient, _local_tensor=torch.ones(32, 32))
    with torch.inference_mode():
        adoption.adopt_part_of_gradient(runtime.memory, parameter)
    assert manages(runtime, gradient._local_tensor) == [True]
    return gradient._local_tensor


def _moved_parameter(runtime: Runtime) -> torch.Tensor:
    weight, other = (torch.nn.Linear(32, 32).weight for _ in range(2))
    other.data.fill_(1)
    with torch.inference_mode():
        assert adoption.move_to(runtime.memory, weight, other.untyped_storage())
    return weight


def _restored_parameter(runtime: Runtime) -> torch.Tensor:
    weight = torch.nn.Linear(32, 32).weight
    weight.data.fill_(1)
    with torch.inference_mode():
        adoption.restore(runtime.memory, weight)
    assert manages(runtime, weight) == [False]
    return weight


def _duplicated_parameter(_runtime: Runtime) -> torch.Tensor:
    weight = torch.nn.Linear(32, 32).weight
    weight.data.fill_(1)
    with torch.inference_mode():
        copied = Duplicates([weight], 1).take(weight)
    assert copied is not None
    return copied


@pytest.mark.parametrize(
    "make",
    [
        _adopted_parameter,
        _adopted_gradient,
        _adopted_state,
        _adopted_shard,
        _adopted_shard_of_a_gradient,
        _moved_parameter,
        _restored_parameter,
        _duplicated_parameter,
    ],
)
def test_what_moves_under_inference_mode_can_be_trained(
    runtime: Runtime, make: Callable[[Runtime], torch.Tensor]
) -> None:
    moved = make(runtime)
    assert not moved.is_inference()
    assert moved.sum().item() == 1024


def test_a_model_is_evaluated_before_it_is_trained(runtime: Runtime) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(32, 32)
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        model.requires_grad_()
        with torch.inference_mode():
            model(torch.ones(2, 32))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 32)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    managed = train()
    assert runtime.memory.arenas.bytes_by_kind()[Kind.PARAMETER]
    runtimes.stop()
    assert all(map(torch.equal, managed, train()))
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)


def test_conversions_and_copies_move_again(runtime: Runtime) -> None:
    model = torch.nn.Linear(64, 64)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert manages(runtime, model.weight, half.weight) == [True, True]
    assert torch.equal(half.weight, model.weight.to(torch.bfloat16))
    half(torch.randn(2, 64, dtype=torch.bfloat16)).sum().backward()
    assert manages(runtime, half.weight.grad) == [True]


def test_pickles_know_nothing_of_chunks(runtime: Runtime) -> None:
    model = torch.nn.Linear(32, 32)
    model(torch.randn(2, 32)).sum().backward()
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(loaded.weight, model.weight)
    assert b"memtide" not in pickle.dumps(model)


def test_gradients_keep_their_object_and_accumulate_in_place(runtime: Runtime) -> None:
    model = torch.nn.Linear(32, 32)
    seen = []
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(id(p.grad)))
    for _ in range(2):
        model(torch.ones(1, 32)).sum().backward()
    assert set(seen) == {id(model.weight.grad)}
    assert torch.equal(model.weight.grad, torch.full((32, 32), 2.0))


def test_a_script_that_steps_in_backward_finds_its_gradients(runtime: Runtime) -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

            def step(p: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                p.grad = None

            parameter.register_post_accumulate_grad_hook(step)
        losses = []
        for _ in range(4):
            loss = model(torch.ones(2, 32)).square().sum()
            loss.backward()
            losses.append(loss.item())
        return losses

    managed = train()
    runtimes.stop()
    assert managed == train()
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)


def test_uninstalling_leaves_torch_as_it_was() -> None:
    watched = {
        "apply": lambda: torch.nn.Module._apply,
        "deepcopy": lambda: torch.nn.Parameter.__deepcopy__,
        "group": lambda: torch.optim.Optimizer.add_param_group,
        "step": lambda: torch.optim.Optimizer.profile_hook_step,
    }
    before = {name: look() for name, look in watched.items()}
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    assert all(look() is not before[name] for name, look in watched.items())
    runtimes.stop()
    assert {name: look() for name, look in watched.items()} == before
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_no_cache_is_emptied_after_the_first_step_of_a_run_that_never_ran_short(
    cpu_as_gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_memory, "_CACHED_BYTES", 16 << 10)
    runtimes.start(
        FakeClient(handles_faults=False, lease_budget=256), Observer(), adopt_everything=True
    )
    try:
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(12)))
        assert cpu_as_gpu.calls.count("empty_cache") == 3, "for 48 KiB of parameters"
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 32)).sum().backward()
            optimizer.step()
            if step == 0:
                cpu_as_gpu.calls.clear()
    finally:
        runtimes.stop()
    assert cpu_as_gpu.calls.count("empty_cache") == 0
