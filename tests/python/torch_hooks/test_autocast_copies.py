"""Autocast's copies of weights have memory only while operations use them, with a fake client as on
a GPU."""

from __future__ import annotations

import copy
import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import memtide
import pytest
import torch
from autocasting import FEW_CHUNKS, LAYERS, WIDTH, batch, deep, region
from lease_dispatched import ROOMY
from memtide._memory import autocast_copies
from memtide._memory.autocast_copies import AutocastCopies
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn import functional

LEASE_BUDGET = FEW_CHUNKS
_BYTES = 2 * WIDTH * WIDTH  # Each copy of a weight has these.


class Sizes:
    """The storages of copies; `most_bytes`: what they had at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self.most_bytes = 0
        note, fill = AutocastCopies.note, autocast_copies._Copy.fill

        def noting(copies: AutocastCopies, weight: Any, made: torch.Tensor) -> None:
            note(copies, weight, made)
            if isinstance(weight, nn.Parameter) and made.nbytes == _BYTES:
                self.storages.append(made.untyped_storage())
            self.most_bytes = max(self.most_bytes, self.bytes)

        def filling(each: Any) -> None:
            fill(each)
            self.most_bytes = max(self.most_bytes, self.bytes)

        patch.setattr(AutocastCopies, "note", noting)
        patch.setattr(autocast_copies._Copy, "fill", filling)

    @property
    def bytes(self) -> int:
        return sum(each.nbytes() for each in self.storages)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    return Sizes(monkeypatch)


def train(model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], steps: int = 3) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(each.detach().clone() for each in model.parameters())]


def simple(model: nn.Module) -> torch.Tensor:
    with region():
        return model(batch()).float().square().mean()


def weights_used_twice(model: nn.Module) -> torch.Tensor:
    """Torch's cache makes one copy of each weight, whose gradients add up in bfloat16."""
    with region():
        return model(model(batch())).float().square().mean()


def backward_within_the_region(model: nn.Module) -> torch.Tensor:
    with region():
        loss = model(batch()).float().square().mean()
        loss.backward(retain_graph=True)
    return loss


def beside_no_grad(model: nn.Module) -> torch.Tensor:
    with region():
        result = model(batch() + 1)
        with torch.no_grad():
            target = model(batch())
        return functional.mse_loss(result.float(), target.float())


def with_casts_of_its_own(model: Any) -> torch.Tensor:
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        half = functional.linear(batch(), weight)
        return (model(half) @ weight.t()).float().square().mean()


def with_a_written_copy(model: Any) -> torch.Tensor:
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        out = model(batch() @ weight.detach())
        weight.mul_(2)
        return (model(out) @ weight).float().square().mean()


def under_a_checkpoint(model: Any) -> torch.Tensor:
    with region():
        value = batch().requires_grad_()
        for layer in model:
            value = torch.utils.checkpoint.checkpoint(layer, value, use_reentrant=False)
        return value.float().square().mean()


def with_saved_tensor_hooks(model: nn.Module) -> torch.Tensor:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each)
    with region(), hooks:
        return model(batch()).float().square().mean()


LOSSES = [
    simple,
    weights_used_twice,
    backward_within_the_region,
    beside_no_grad,
    with_casts_of_its_own,
    with_a_written_copy,
    under_a_checkpoint,
    with_saved_tensor_hooks,
]


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Any:
    return train(deep(), request.getfixturevalue("loss_of"))


@pytest.mark.parametrize("loss_of", LOSSES, ids=lambda each: each.__name__)
def test_bits_are_torch_s(plain: Any, runtime: Runtime, loss_of: Any) -> None:
    for managed, expected in zip(train(deep(), loss_of), plain, strict=True):
        assert torch.equal(managed, expected)
    assert not runtime.ledger.holding


@pytest.mark.parametrize("loss_of", LOSSES[:4], ids=lambda each: each.__name__)
def test_few_copies_have_memory_at_once(runtime: Runtime, sizes: Sizes, loss_of: Any) -> None:
    model = deep()
    loss_of(model)
    assert len(sizes.storages) >= LAYERS
    assert 0 < sizes.most_bytes <= 3 * _BYTES


def test_backward_fills_few_at_once_and_each_leaves_again(runtime: Runtime, sizes: Sizes) -> None:
    model = deep()
    with region():
        loss = model(batch()).float().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    assert sizes.most_bytes <= 3 * _BYTES


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.mul_(2),
        lambda weight: weight.data.mul_(2),
        lambda weight: torch._foreach_mul_([weight], 2),
        lambda weight: torch.optim.SGD([weight], lr=1.0).step(),
        lambda weight: setattr(weight, "data", torch.zeros_like(weight)),
    ],
    ids=["in place", "past its version", "in a list", "by an optimizer", "in its place"],
)
def test_a_weight_that_changes_before_backward_changes_no_gradient(
    request: pytest.FixtureRequest, change: Any
) -> None:
    def gradients() -> list[Any]:
        model: Any = deep()
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        value = batch().requires_grad_()
        with region():
            out = model(value)
        with torch.no_grad():
            change(model[5][0].weight)
        out.float().sum().backward()
        return [value.grad, *(each.grad.clone() for each in model.parameters())]

    expected = gradients()
    request.getfixturevalue("runtime")
    for managed, plain in zip(gradients(), expected, strict=True):
        assert torch.equal(managed, plain)


def test_copies_of_the_script_s_own_keep_their_memory(runtime: Runtime) -> None:
    model: Any = deep()
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        functional.linear(batch(), weight)
        model(batch())
    assert weight.untyped_storage().nbytes() == _BYTES
    assert torch.equal(copy.deepcopy(weight.detach()), model[0][0].weight.bfloat16())


def test_copies_that_a_call_casts_one_after_another_end_with_it(runtime: Runtime) -> None:
    """An LSTM is one call of many operations."""
    torch.manual_seed(5)
    lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2)
    with region():
        loss = lstm(batch())[0].float().square().mean()
    loss.backward()
    runtimes.stop()
    managed = [each.grad.clone() for each in lstm.parameters()]
    lstm.zero_grad()
    with region():
        lstm(batch())[0].float().square().mean().backward()
    for gradient, parameter in zip(managed, lstm.parameters(), strict=True):
        assert torch.equal(gradient, parameter.grad)


def test_an_operator_of_a_library_gets_its_bytes(runtime: Runtime) -> None:
    """It is called with a copy of the script's, whose memory is another's call."""
    read: list[int] = []

    class Raw(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return value.to(torch.bfloat16) @ weight.to(torch.bfloat16)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (weight,) = ctx.saved_tensors
            casts = [each.to(torch.bfloat16) for each in (weight, weight + 1)]
            gradient = gradient.to(torch.bfloat16) @ casts[0].t()
            model(batch())
            read.extend(each.untyped_storage().nbytes() for each in casts)
            return gradient.float(), None

    model: Any = deep()
    with region():
        value = Raw.apply(batch().requires_grad_(), model[0][0].weight)
        model(value).float().sum().backward()
    assert read == [_BYTES, _BYTES]


@pytest.mark.parametrize("runtime", [ROOMY], indirect=True)
def test_what_other_threads_compute_in_a_covered_phase_keeps_its_memory(runtime: Runtime) -> None:
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    losses: list[torch.Tensor] = []

    def compute() -> None:
        with region():
            losses.append(other(batch()).float().square().mean())

    other: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    both = nn.ModuleList([model, other])
    train(both, lambda _: simple(model) + simple(other), steps=4)
    with region():
        loss = model(batch()).float().square().mean()
    assert runtime.ledger.holding
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    (loss + losses[0]).backward()


def test_a_graph_that_is_dropped_leaves_nothing(runtime: Runtime) -> None:
    """A call's frame, and what is in it, does not outlive the call."""
    live: list[weakref.ref[torch.Tensor]] = []

    def step(model: nn.Module) -> None:
        value = batch()
        live.append(weakref.ref(value))
        with region():
            loss = model(value).float().sum()
        assert loss.requires_grad

    model = deep()
    for _ in range(3):
        step(model)
    batch()
    assert [each() for each in live] == [None] * 3


def test_weights_that_a_raw_kernel_changes_within_hold_change_no_gradient(
    runtime: Runtime,
) -> None:
    model: Any = deep()
    value = batch().requires_grad_()
    with region():
        model(value).float().sum().backward()
    expected, value.grad = value.grad, None
    weight = model[3][0].weight
    with memtide.hold(weight, write=True), region():
        loss = model(value).float().sum()
        ctypes.memset(weight.data_ptr(), 0, weight.nbytes)
    loss.backward()
    assert torch.equal(value.grad, expected)


def test_a_copy_that_another_thread_uses_first_keeps_its_memory(runtime: Runtime) -> None:
    model: Any = deep()
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        thread = threading.Thread(target=functional.linear, args=(batch().bfloat16(), weight))
        thread.start()
        thread.join()
        model(batch())
    assert weight.untyped_storage().nbytes() == _BYTES
    assert torch.equal(nn.Tanh()(weight), torch.tanh(model[0][0].weight.bfloat16()))


def test_hooks_of_the_script_find_each_copy_at_an_address_of_its_own(
    runtime: Runtime, sizes: Sizes
) -> None:
    model: Any = deep()
    addresses: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bfloat16 and tensor.shape == (WIDTH, WIDTH):
            addresses.add(tensor.data_ptr())
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each)
    with region(), hooks:
        model(batch())
    assert len(addresses) == LAYERS - 1
    addresses.clear()
    with region():
        model(batch())
        with hooks:
            model(batch())
    assert len(addresses) == LAYERS - 1


def test_a_storage_whose_copy_was_filled_can_be_resized(runtime: Runtime) -> None:
    model: Any = deep()
    with torch.no_grad(), region():
        model(batch())
    model[0][0].weight.untyped_storage().resize_(0)


def test_a_pool_of_held_chunks_leaves_copies_that_would_not_fit_beside(
    runtime: Runtime, sizes: Sizes
) -> None:
    model: Any = deep()
    with region():
        loss = model(batch()).float().square().mean()
    assert sizes.bytes == 0
    held = [model[at][0].weight for at in range(6)]
    with memtide.hold(held):
        loss.backward()


def test_weights_end_with_their_copies(runtime: Runtime) -> None:
    model: Any = deep()
    with torch.no_grad(), region():
        model(batch())
    weight = weakref.ref(model[0][0].weight)
    del model
    for _ in range(100):
        batch()
    gc.collect()
    assert weight() is None


def test_on_a_second_stream_nothing_is_emptied_any_more(
    runtime: Runtime, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    class Stream:
        device = torch.device("cpu")

        def wait_stream(self, other: Any) -> None:
            done.append(("waits", self, other))

    class On:
        def __init__(self, stream: Any) -> None:
            self.before, self.stream = current[0], stream

        def __enter__(self) -> None:
            current[0] = self.stream

        def __exit__(self, *_error: object) -> None:
            current[0] = self.before

    first, second = Stream(), Stream()
    current = [first]
    module = SimpleNamespace(current_stream=lambda _device: current[0], stream=On)
    monkeypatch.setattr(autocast_copies, "gpu_module", lambda _type: module)
    model: Any = deep()
    with region():
        model(batch())
        assert sizes.bytes <= 3 * _BYTES
        current[0] = second
        model(batch())
        assert sizes.bytes == LAYERS * _BYTES
    assert done[0] == ("waits", second, first)
    assert len(done) >= LAYERS - 3


def test_a_copy_that_finds_no_memory_is_filled_with_fewer_chunks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = deep()
    with region():
        expected = model(batch())
    slots = runtime.client.slots
    original, failed = autocast_copies._Copy.fill, []

    def fill(copy: Any) -> None:
        if copy.is_empty and not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 KiB")
        original(copy)

    monkeypatch.setattr(autocast_copies._Copy, "fill", fill)
    with region():
        assert torch.equal(model(batch()), expected)
        assert torch.equal(model(batch()), expected)
    assert failed and runtime.client.slots < slots
    failed.clear()
    slots = runtime.client.slots
    with region():
        model(batch())
        with torch.no_grad():
            model[0][0].weight.mul_(2)
    assert failed and runtime.client.slots < slots


@pytest.mark.parametrize("runtime", [ROOMY], indirect=True)
def test_copies_of_before_have_memory_once_nothing_is_seen(runtime: Runtime, sizes: Sizes) -> None:
    """A forward pass that found no room for a phase, and then a covered one."""
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    train(model, simple, steps=4)
    sizes.storages.clear()
    runtime._gpu.switch._refused = True
    with region():
        loss = model(batch()).float().square().mean()
    assert sizes.bytes == 0 and not runtime.ledger.holding
    runtime._gpu.switch._refused = False
    model(batch())
    assert sizes.bytes == 2 * _BYTES and runtime.ledger.holding
    loss.backward()
