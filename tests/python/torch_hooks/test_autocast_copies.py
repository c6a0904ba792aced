"""Autocast's copies of weights have memory only while operations use them, with a fake client as on
a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memtide
import pytest
import torch
from lease_dispatched import ROOMY
from memtide._memory import autocast_copies
from memtide._memory.autocast_copies import AutocastCopies
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

LEASE_BUDGET = 100  # Fewer chunks than the weights of `deep` have.
_WIDTH = 128
_BYTES = 2 * _WIDTH * _WIDTH  # Each copy of a weight has these.
_LAYERS = 8


def deep() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(_LAYERS)]
    return nn.Sequential(*layers)


def region() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def batch() -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(4, _WIDTH)


class Sizes(TorchDispatchMode):
    """The storages that casts of matrices have made; `most_bytes`: what they had at once."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[torch.UntypedStorage] = []
        self.most_bytes = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        result: torch.Tensor = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], nn.Parameter):
            self.storages.append(result.untyped_storage())
        self.most_bytes = max(self.most_bytes, self.bytes)
        return result

    @property
    def bytes(self) -> int:
        return sum(each.nbytes() for each in self.storages if each.nbytes() >= _BYTES)


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
        with torch.no_grad():
            target = model(batch())
        return functional.mse_loss(model(batch() + 1).float(), target.float())


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
def test_few_copies_have_memory_at_once(runtime: Runtime, loss_of: Any) -> None:
    sizes = Sizes()
    model = deep()
    with sizes:
        loss_of(model)
    assert len(sizes.storages) >= _LAYERS
    assert 0 < sizes.most_bytes <= 3 * _BYTES


def test_backward_fills_few_at_once_and_each_leaves_again(runtime: Runtime) -> None:
    sizes = Sizes()
    model = deep()
    with sizes, region():
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


def test_a_change_that_nobody_saw_is_an_error(runtime: Runtime) -> None:
    model: Any = deep()
    with region():
        loss = model(batch()).float().sum()
    torch.autograd.graph.increment_version(model[5][0].weight)
    with pytest.raises(RuntimeError, match=r"memtide.hold\(weight, write=True\)"):
        loss.backward()


def test_held_copies_have_memory(runtime: Runtime) -> None:
    model: Any = deep()
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        expected = weight.clone()
        model(batch())
        assert weight.untyped_storage().nbytes() == 0
        with memtide.hold(weight):
            assert weight.untyped_storage().nbytes() == _BYTES
            model(batch())
            assert torch.equal(weight, expected)


def test_saved_copies_have_their_bytes(runtime: Runtime, tmp_path: Path) -> None:
    model: Any = deep()
    with region():
        weight = model[0][0].weight.to(torch.bfloat16)
        expected = weight.clone()
        model(batch())
        assert weight.untyped_storage().nbytes() == 0
        torch.save({"weight": weight}, tmp_path / "weight.pt")
    assert torch.equal(torch.load(tmp_path / "weight.pt")["weight"], expected)


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


def test_what_a_function_casts_keeps_its_memory(runtime: Runtime) -> None:
    class Raw(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            cast = weight.to(torch.bfloat16)
            ctx.save_for_backward(cast)
            return value.to(torch.bfloat16) @ cast

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (cast,) = ctx.saved_tensors
            assert cast.untyped_storage().nbytes() == _BYTES
            return gradient.float(), None

    model: Any = deep()
    with region():
        value = Raw.apply(batch().requires_grad_(), model[0][0].weight)
        loss = model(value).float().sum()
    loss.backward()


def test_on_a_second_stream_nothing_is_emptied_any_more(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
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
    sizes = Sizes()
    with sizes, region():
        model(batch())
        assert sizes.bytes <= 3 * _BYTES
        current[0] = second
        model(batch())
        assert sizes.bytes == _LAYERS * _BYTES
    assert done[0] == ("waits", second, first)
    assert len(done) >= _LAYERS - 3


def test_a_copy_that_finds_no_memory_is_filled_with_fewer_chunks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = deep()
    with region():
        expected = model(batch())
    slots = runtime.client.slots
    original, failed = AutocastCopies._fill, []

    def fill(copies: AutocastCopies, copy: Any) -> None:
        if copy.is_empty and not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 KiB")
        original(copies, copy)

    monkeypatch.setattr(AutocastCopies, "_fill", fill)
    with region():
        assert torch.equal(model(batch()), expected)
        assert torch.equal(model(batch()), expected)
    assert failed and runtime.client.slots < slots


@pytest.mark.parametrize("runtime", [ROOMY], indirect=True)
def test_copies_of_before_have_memory_once_nothing_is_seen(runtime: Runtime) -> None:
    """A forward pass under a mode of the script's own, and then a covered one."""
    model: Any = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH))
    train(model, simple, steps=4)
    sizes = Sizes()
    with sizes, region():
        loss = model(batch()).float().square().mean()
    assert sizes.bytes == 0 and not runtime.ledger.holding
    model(batch())
    assert sizes.bytes == 2 * _BYTES and runtime.ledger.holding
    loss.backward()
