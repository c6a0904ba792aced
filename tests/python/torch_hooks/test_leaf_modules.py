"""Leaf modules run without lease dispatch where chunks do not all fit, with a fake client as on a
GPU.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from lease_dispatched import Training, stack, stats_of_cuda
from memtide._capi.client import Access, Places
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import ResourceExhausted
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

# The weights have 4 chunks each, and as many in gradients and in each of two states.
_TIGHT = 20
pytestmark = pytest.mark.parametrize("runtime", [_TIGHT], indirect=True)
_FORWARD, _BACKWARD = "aten.addmm.default", "aten.mm.default"


@pytest.fixture
def training(runtime: Runtime) -> Training:
    training = Training().warm_up()
    training.optimizer.zero_grad()
    assert not runtime.ledger.holding
    return training


@pytest.fixture
def leaf(runtime: Runtime, seen: list[str]) -> nn.Linear:
    """A layer that has been seen once."""
    module = nn.Linear(64, 64)
    value = torch.ones(1, 64)
    module(value)
    seen.clear()
    module(value)
    assert seen == []
    return module


def test_neither_a_leaf_nor_its_node_is_seen_and_all_else_is(
    training: Training, seen: list[str]
) -> None:
    seen.clear()
    loss = training.forward()
    assert _FORWARD not in seen and "aten.gelu.default" not in seen
    assert "aten.pow.Tensor_Scalar" in seen
    seen.clear()
    loss.backward()
    assert _BACKWARD not in seen
    assert "aten.gelu_backward.default" in seen


def test_a_leaf_s_chunks_are_leased_in_both_passes_and_not_afterwards(
    runtime: Runtime, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = training.model[2].weight
    places = set(runtime.memory.addresses.span_places(weight))
    leased: list[bool] = []
    original = functional.linear

    def linear(*args: Any) -> torch.Tensor:
        # Leases ahead of use may be taken from under a leaf.
        runtime.ledger.release_all()
        leased.append(places <= runtime.client.in_use())
        return original(*args)

    monkeypatch.setattr(functional, "linear", linear)
    output = training.model[2](torch.ones(4, 64, requires_grad=True))
    assert leased == [True] and runtime.client.in_use() == set()

    def look(*_: Any) -> None:
        runtime.ledger.release_all()
        leased.append(places <= runtime.client.in_use())

    output.grad_fn.register_prehook(look)
    output.sum().backward()
    runtime.ledger.release_all()
    assert leased == [True] * 2 and runtime.client.in_use() == set()


def test_results_are_those_of_plain_torch(runtime: Runtime) -> None:
    under_memtide = _losses()
    runtimes.stop()
    plain = _losses()
    runtimes.start(
        FakeClient(handles_faults=False, lease_budget=_TIGHT), Observer(), adopt_everything=True
    )
    # The client's optimizer is not torch's, to the bit.
    assert under_memtide == pytest.approx(plain, rel=1e-5)


def _losses() -> list[float]:
    training = Training()
    return [training.step() for _ in range(6)]


def test_an_input_in_a_chunk_is_leased(runtime: Runtime, leaf: nn.Linear, seen: list[str]) -> None:
    other = nn.Linear(64, 64)
    assert runtime.memory.addresses.manages(other.weight)
    runtime.client.acquired.clear()
    leaf(other.weight.detach())
    assert _FORWARD in seen
    places = tuple(runtime.memory.addresses.span_places(other.weight))
    assert any(set(places) <= set(each) for each, _ in runtime.client.acquired)


class Own(nn.Linear):
    """A class of the script's own."""


def _own_forward(leaf: nn.Linear) -> None:
    leaf.forward = lambda value: nn.Linear.forward(leaf, value)  # type: ignore[method-assign]


def _own_class(leaf: nn.Linear) -> None:
    leaf.__class__ = Own


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: leaf.register_forward_pre_hook(lambda *_: None),
        lambda leaf: leaf.register_forward_hook(lambda *_: None),
        lambda leaf: leaf.register_full_backward_pre_hook(lambda *_: None),
        lambda leaf: leaf.register_full_backward_hook(lambda *_: None),
        _own_forward,
        _own_class,
    ],
    ids=["pre_hook", "hook", "backward_pre_hook", "backward_hook", "forward", "class"],
)
def test_what_a_script_has_changed_is_seen(
    leaf: nn.Linear, seen: list[str], change: Callable[[nn.Linear], None]
) -> None:
    change(leaf)
    leaf(torch.ones(1, 64, requires_grad=True))
    assert _FORWARD in seen


@pytest.mark.parametrize(
    "register",
    [
        torch_modules.register_module_forward_pre_hook,
        torch_modules.register_module_forward_hook,
        torch_modules.register_module_full_backward_pre_hook,
        torch_modules.register_module_full_backward_hook,
    ],
)
def test_a_stranger_s_global_hook_is_seen(
    leaf: nn.Linear, seen: list[str], register: Callable[..., Any]
) -> None:
    handle = register(lambda *_: None)
    leaf(torch.ones(1, 64, requires_grad=True))
    handle.remove()
    assert _FORWARD in seen


@pytest.mark.parametrize(
    "register",
    [torch_modules.register_module_forward_pre_hook, torch_modules.register_module_forward_hook],
)
def test_a_stranger_s_only_global_hook_is_called(
    runtime: Runtime, leaf: nn.Linear, register: Callable[..., Any]
) -> None:
    called: list[object] = []
    handle = register(lambda *_: called.append(1) or None)
    runtime.module_hooks.hide()
    leaf(torch.ones(1, 64, requires_grad=True))
    runtime.module_hooks.show()
    handle.remove()
    assert called == [1]


def test_a_forward_that_was_replaced_is_seen(
    leaf: nn.Linear, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda module, value: forward(module, value))
    leaf(torch.ones(1, 64))
    assert _FORWARD in seen


def test_a_leaf_that_was_seen_to_touch_other_chunks_is_always_seen(
    runtime: Runtime, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, other = nn.Linear(64, 64), nn.Linear(64, 64)
    original = functional.linear
    monkeypatch.setattr(
        functional, "linear", lambda value, *rest: original(value, *rest) + other.weight.sum()
    )
    for _ in range(3):
        seen.clear()
        module(torch.ones(1, 64))
        assert _FORWARD in seen and "aten.sum.default" in seen


def test_an_embedding_that_writes_to_its_weight_is_always_seen(
    runtime: Runtime, seen: list[str]
) -> None:
    module = nn.Embedding(64, 64, max_norm=1.0)
    for _ in range(3):
        seen.clear()
        module(torch.arange(4))
        assert "aten.embedding_renorm_.default" in seen


def test_a_parameter_that_has_moved_is_seen_once_more(leaf: nn.Linear, seen: list[str]) -> None:
    leaf.weight.data = torch.ones(64, 64)
    for is_seen in (True, False):
        seen.clear()
        leaf(torch.ones(1, 64))
        assert (_FORWARD in seen) == is_seen


class Watching(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_under_a_mode_of_the_script_s_own_it_is_seen(leaf: nn.Linear, seen: list[str]) -> None:
    with Watching():
        leaf(torch.ones(1, 64))
    assert _FORWARD in seen


def test_a_forward_that_raises_leaves_lease_dispatch_on(runtime: Runtime, leaf: nn.Linear) -> None:
    modes = stack()
    with pytest.raises(RuntimeError, match="shapes"):
        leaf(torch.ones(1, 3))
    assert stack() == modes and runtime.client.in_use() == set()


def test_a_leaf_that_runs_short_is_run_again_with_fewer_chunks(
    runtime: Runtime, leaf: nn.Linear, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = leaf(torch.ones(1, 64))
    slots = runtime.client.slots
    original, failed = functional.linear, []

    def linear(*args: Any) -> torch.Tensor:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 KiB")
        return original(*args)

    monkeypatch.setattr(functional, "linear", linear)
    assert torch.equal(leaf(torch.ones(1, 64)), expected)
    assert failed and runtime.client.slots < slots
    assert _FORWARD in seen, "it is run again under lease dispatch"


def test_without_headroom_nodes_are_seen(
    training: Training, cuda: dict[str, Any], seen: list[str]
) -> None:
    cuda.update(stats_of_cuda(reserved_bytes=0))
    seen.clear()
    loss = training.forward()
    assert _FORWARD not in seen
    loss.backward()
    assert _BACKWARD in seen


def test_what_unpacks_saved_tensors_is_seen(training: Training, seen: list[str]) -> None:
    """Checkpointing runs a whole forward pass within a node."""
    first, *rest = training.model
    hidden = first(training.input)
    loss = checkpoint(nn.Sequential(*rest), hidden, use_reentrant=False).square().mean()
    seen.clear()
    loss.backward()
    assert _BACKWARD in seen


def test_a_gradient_in_a_chunk_is_leased(
    runtime: Runtime, leaf: nn.Linear, seen: list[str]
) -> None:
    other = nn.Linear(64, 64)
    output = leaf(torch.ones(64, 64))
    seen.clear()
    output.backward(other.weight.detach())
    assert _BACKWARD in seen


def test_a_node_whose_parameter_has_moved_is_seen(leaf: nn.Linear, seen: list[str]) -> None:
    output = leaf(torch.ones(4, 64, requires_grad=True))
    leaf.weight.data = torch.ones(64, 64)
    seen.clear()
    output.sum().backward()
    assert _BACKWARD in seen


def test_hooks_of_scripts_behind_a_node_are_seen(leaf: nn.Linear, seen: list[str]) -> None:
    output = leaf(torch.ones(4, 64, requires_grad=True))
    parameter = nn.Linear(64, 64).weight.detach()

    def use(*_: Any) -> None:
        parameter.neg()

    output.grad_fn.register_hook(use)
    seen.clear()
    output.sum().backward()
    assert "aten.neg.default" in seen and _BACKWARD not in seen


def test_the_adoption_of_gradients_leases_for_itself(
    runtime: Runtime, training: Training, seen: list[str]
) -> None:
    weight = training.model[2].weight
    loss = training.forward()
    seen.clear()
    runtime.client.acquired.clear()
    loss.backward()
    assert runtime.memory.addresses.manages(weight.grad)
    assert "aten.set_.source_Storage_storage_offset" not in seen
    written = {
        p for places, access in runtime.client.acquired if access is Access.WRITE for p in places
    }
    assert set(runtime.memory.addresses.span_places(weight.grad)) <= written


def test_a_node_that_raises_leaves_lease_dispatch_on_and_its_leases_end(
    runtime: Runtime, training: Training
) -> None:
    modes = stack()
    output = training.model[2](torch.ones(4, 64, requires_grad=True))

    def fail(*_: Any) -> None:
        raise KeyError

    output.grad_fn.register_prehook(fail)
    with pytest.raises(KeyError):
        output.sum().backward()
    assert stack() == modes
    training.optimizer.step()
    assert runtime.client.in_use() == set()


def test_other_threads_run_leaves_so_too(leaf: nn.Linear, seen: list[str]) -> None:
    value = torch.ones(1, 64)
    seen.clear()
    thread = threading.Thread(target=leaf, args=(value,))
    thread.start()
    thread.join()
    assert seen == []


def test_small_parameters_are_stepped_unseen_and_all_others_are_leased(
    runtime: Runtime, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not runtime.memory.addresses.manages(training.model[0].bias)
    adam = importlib.import_module("torch.optim.adam")
    update, modes = adam._single_tensor_adam, []

    def watched(parameters: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        if any(parameter is training.model[0].bias for parameter in parameters):
            modes.append(len(stack()))
        update(parameters, *args, **kwargs)

    monkeypatch.setattr(adam, "_single_tensor_adam", watched)
    training.step()
    assert modes == [0]
    with runtime.offloaded.around_rest({"params": [training.model[0].weight]}):
        assert len(stack()) == 1


def test_a_leaf_that_does_not_fit_beside_kept_leases_is_refused_with_both_numbers(
    runtime: Runtime, leaf: nn.Linear
) -> None:
    others = nn.Linear(64, 64 * (_TIGHT // 4))
    places = Places(runtime.memory.addresses.span_places(others.weight))
    leases = runtime.ledger.keep(places, Places(()))
    with pytest.raises(ResourceExhausted, match=f"touches 4 chunks .* lease {_TIGHT}"):
        leaf(torch.ones(1, 64))
    leases.release()
    leaf(torch.ones(1, 64))
