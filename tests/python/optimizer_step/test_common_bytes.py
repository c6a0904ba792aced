"""Parameters that use bytes in common are stepped one after the other, as torch does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from fake_client import FakeClient
from memtide._optimizer_step.accesses import Access, UsedBytes, collisions
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from offloaded_loops import assert_same, everything, plainly
from torch import Tensor, nn

Tie = Callable[[torch.Tensor], torch.Tensor]
Share = Callable[[torch.optim.Optimizer, Tensor, Tensor], None]


def tied(tie: Tie, groups: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    first, last = model[0].weight, model[2].weight
    last.data = tie(first.data)
    parts = [list(model[:2].parameters()), list(model[2:].parameters())]
    params = [{"params": part} for part in parts] if groups == 2 else model.parameters()
    optimizer = torch.optim.AdamW(params, lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        value = model[:2](torch.randn(5, 64))
        (value[:, : last.shape[1]] @ last.t()).square().mean().backward()
        optimizer.step()
    assert last.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    return everything(model, optimizer)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "tie", [lambda data: data, lambda data: data.t(), lambda data: data[32:], lambda d: d[:, ::2]]
)
def test_two_parameters_over_the_same_bytes_are_stepped_as_plainly(tie: Tie, groups: int) -> None:
    plain = plainly(lambda: tied(tie, groups))
    runtime = runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        assert_same(tied(tie, groups), plain)
    finally:
        runtimes.stop()
    assert runtime.offloaded.parts.steps >= 4  # The other parameters are in chunks.


def shared(share: Share, *, foreach: bool, groups: int) -> list[torch.Tensor]:
    """Trains with an optimizer of which `share` lets two parameters have something in common."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    parts = [list(model[:2].parameters()), list(model[2:].parameters())]
    params = [{"params": part} for part in parts] if groups == 2 else model.parameters()
    optimizer = torch.optim.NAdam(params, lr=0.01, foreach=foreach)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(5, 64)).square().mean().backward()
        share(optimizer, model[0].weight, model[2].weight)
        optimizer.step()
        for weight in (model[0].weight, model[2].weight):
            weight.grad = None
    return everything(model, optimizer)


def second_moment(optimizer: torch.optim.Optimizer, one: Tensor, other: Tensor) -> None:
    if optimizer.state:
        optimizer.state[other]["exp_avg_sq"] = optimizer.state[one]["exp_avg_sq"]


def count_of_steps(optimizer: torch.optim.Optimizer, one: Tensor, other: Tensor) -> None:
    if optimizer.state:
        optimizer.state[other]["step"] = optimizer.state[one]["step"]


def single_number(optimizer: torch.optim.Optimizer, one: Tensor, other: Tensor) -> None:
    if optimizer.state:
        optimizer.state[other]["mu_product"] = optimizer.state[one]["mu_product"]


def gradient_is_another_parameter(
    optimizer: torch.optim.Optimizer, one: Tensor, other: Tensor
) -> None:
    other.grad = one.data


def gradient_is_a_later_parameter(
    optimizer: torch.optim.Optimizer, one: Tensor, other: Tensor
) -> None:
    one.grad = other.data


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "share",
    [
        *(second_moment, count_of_steps, single_number),
        *(gradient_is_another_parameter, gradient_is_a_later_parameter),
    ],
)
def test_states_and_gradients_over_the_same_bytes_are_used_as_plainly(
    share: Share, foreach: bool, groups: int
) -> None:
    plain = plainly(lambda: shared(share, foreach=foreach, groups=groups))
    runtime = runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        assert_same(shared(share, foreach=foreach, groups=groups), plain)
    finally:
        runtimes.stop()
    assert runtime.offloaded.parts.steps >= 4


def test_two_accesses_meet_where_one_writes() -> None:
    def of(owner: int, start: int, end: int, *, writes: bool = True) -> Access:
        return Access(start, end, owner, writes)

    behind_a_longer_one = [
        of(0, 60, 70),
        of(1, 0, 40),
        of(2, 50, 100),
        of(3, 40, 50),
        of(4, 80, 90),
    ]
    assert list(collisions(behind_a_longer_one)) == [{0, 2}, {2, 4}]
    assert not list(collisions(behind_a_longer_one[1:2] + behind_a_longer_one[3:]))
    readers = [of(0, 0, 10, writes=False), of(1, 0, 10, writes=False)]
    assert not list(collisions(readers))
    assert list(collisions([*readers, of(2, 4, 5)])) == [{0, 1, 2}]
    assert list(collisions([of(index, 0, 4) for index in range(3)])) == [{0, 1, 2}]
    assert list(collisions([of(1, 0, 4), of(1, 0, 4, writes=False)])) == [{1}]


def test_a_call_meets_those_before_it_where_one_writes() -> None:
    """Ranges of random calls, against the bytes one by one."""
    chosen = random.Random(5)

    def access(most: int) -> Access:
        start, writes = chosen.randrange(most), chosen.random() < 0.5
        return Access(start, start + chosen.randrange(1, 6), 0, writes)

    for _ in range(100):
        used, read, written = UsedBytes(), set[int](), set[int]()
        for count in (3, 100, 1, 5, 80):
            accesses = [access(2000) for _ in range(count)]
            for each in accesses:
                own = set(range(each.start, each.end))
                assert used.meet([each]) == bool(own & (read | written if each.writes else written))
            used.add(accesses)
            for each in accesses:
                (written if each.writes else read).update(range(each.start, each.end))
