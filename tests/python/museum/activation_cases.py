"""Activations: autograd saves them, and gets them back from chunks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
import torch
from memtide._activations.kept_storages import KeptStorage, KeptStorages
from memtide._activations.saved_tensor import SavedTensor
from memtide._memory.tensor_allocator import TensorAllocator
from museum import (
    STEPS,
    WIDTH,
    Case,
    Results,
    adamw,
    batch,
    iterations_ending_activations,
    network,
    train,
    values,
)
from torch import nn

_TRUNK = 4  # Modules of a network, of eight.


def transposed_views_of_a_square() -> Results:
    """A matrix and its transpose have one address, one shape and one size in bytes."""
    model = network()
    optimizer = adamw(model)

    def loss_of(_step: int) -> torch.Tensor:
        value = model[:_TRUNK](torch.randn(WIDTH, WIDTH))
        return model[_TRUNK:](_with_transpose(value)).square().mean()

    return [*train(optimizer, loss_of), *values(model, optimizer)]


def _with_transpose(value: torch.Tensor) -> torch.Tensor:
    key = value.sin()
    return ((key @ key.t()) * key.t().mm(key) + value.t()).tanh()


def strides_forgotten(patch: pytest.MonkeyPatch) -> None:
    replace = SavedTensor.replace

    def in_rows(saved: SavedTensor, storage: torch.UntypedStorage) -> None:
        replace(saved, storage)
        whole = saved.tensor
        contiguous = torch.empty(whole.size(), device="meta").stride()
        saved.tensor = whole.as_strided(whole.size(), contiguous)

    patch.setattr(SavedTensor, "replace", in_rows)


def changed_in_place_after_it_was_saved() -> Results:
    """Torch refuses the backward pass of such an iteration, which the script leaves out."""
    model = network()
    optimizer = adamw(model)
    losses, refusals = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = model[:_TRUNK](batch()).exp()
        loss = model[_TRUNK:](value).square().mean()
        if step in (3, 5):
            with torch.no_grad():
                value.add_(1)
        try:
            loss.backward()
        except RuntimeError as error:
            refusals.append(torch.tensor(list(str(error).encode())))
            continue
        optimizer.step()
        losses.append(loss.detach())
    assert len(refusals) in (0, 2)
    return [*losses, *refusals, *values(model, optimizer)]


def versions_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SavedTensor, "unpack", lambda saved: saved.tensor)


def an_output_changed_past_the_counters() -> Results:
    """An adapter adds to what a function has returned, and saved, through `.data`: in torch, the
    gradient is of the sum."""
    model = network()
    optimizer = adamw(model)
    adapter = torch.randn(WIDTH) / 8

    def loss_of(_step: int) -> torch.Tensor:
        value = model[:_TRUNK](batch()).exp()
        value.data += adapter
        return model[_TRUNK:](value).square().mean()

    return [*train(optimizer, loss_of), *values(model, optimizer)]


def moved_under_its_users(patch: pytest.MonkeyPatch) -> None:
    def has_no_other_users(_: KeptStorages, entry: KeptStorage) -> bool:
        return bool(entry.live()) and not entry.is_moved

    patch.setattr(KeptStorages, "_has_no_other_users", has_no_other_users)


def many_of_one_size() -> Results:
    """The last saved activation comes back first, and no two of equal size may have one buffer."""
    model = network(depth=8)
    optimizer = adamw(model)
    return [*train(optimizer, lambda _: model(batch()).square().mean()), *values(model, optimizer)]


def a_ring_of_two_buffers(patch: pytest.MonkeyPatch) -> None:
    """A buffer is used again when another one was filled, though nothing has come back from it."""
    new_activation = TensorAllocator.activation
    buffers: dict[Sequence[int], list[torch.Tensor]] = {}

    def next_in_ring(
        allocator: TensorAllocator, size: Sequence[int], *args: object, **kwargs: object
    ) -> torch.Tensor:
        ring = buffers.setdefault(size, [])
        if len(ring) < 2:
            ring.append(new_activation(allocator, size, *args, **kwargs))
        else:
            ring.reverse()
        return ring[-1]

    patch.setattr(TensorAllocator, "activation", next_in_ring)


def a_graph_that_outlives_its_iteration() -> Results:
    """A prompt is trained through frozen layers, one iteration late, after another optimizer's
    step."""
    model = network()
    optimizer = adamw(model)
    frozen = network().requires_grad_(False)
    prompt = nn.Parameter(batch())
    late = torch.optim.SGD([prompt], lr=0.1)
    losses: Results = []
    graph: torch.Tensor | None = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        if graph is not None:
            late.zero_grad()
            graph.backward()
            late.step()
            losses.append(graph.detach())
        graph = (frozen(prompt.sin()) - 0.5).square().mean()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer), prompt.detach()]


def a_penalty_on_gradients() -> Results:
    """The loss has the square of its own slope in it."""
    model = network()
    optimizer = adamw(model)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = batch().requires_grad_()
        loss = model(value).square().mean()
        (slope,) = torch.autograd.grad(loss, value, create_graph=True)
        loss = loss + 100 * slope.square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def backward_twice_through_one_graph() -> Results:
    """Two losses go backward through common layers, one after the other."""
    model = network()
    optimizer = adamw(model)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = model[:_TRUNK](batch())
        first, second = model[_TRUNK:](value).square().mean(), value.sin().abs().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        losses += [first.detach(), second.detach()]
    return [*losses, *values(model, optimizer)]


def gone_after_the_first_use(patch: pytest.MonkeyPatch) -> None:
    unpack = SavedTensor.unpack
    used: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

    def unpack_once(saved: SavedTensor) -> torch.Tensor:
        if saved in used:
            return torch.full_like(saved.tensor, torch.nan)
        used.add(saved)
        return unpack(saved)

    patch.setattr(SavedTensor, "unpack", unpack_once)


CASES = [
    Case(transposed_views_of_a_square, strides_forgotten),
    Case(changed_in_place_after_it_was_saved, versions_not_compared),
    Case(an_output_changed_past_the_counters, moved_under_its_users),
    Case(many_of_one_size, a_ring_of_two_buffers),
    Case(a_graph_that_outlives_its_iteration, iterations_ending_activations),
    Case(a_penalty_on_gradients, gone_after_the_first_use),
    Case(backward_twice_through_one_graph, gone_after_the_first_use),
]
