"""Parameters that have bytes in common are stepped one after the other, as torch does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_client import FakeClient
from memtide._optimizer_step.split import overlapping
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from offloaded_loops import assert_same, everything, plainly
from torch import nn

Tie = Callable[[torch.Tensor], torch.Tensor]


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


def test_what_overlaps_is_found_behind_a_longer_tensor() -> None:
    whole = torch.zeros(100)
    tensors = [whole[60:70], whole[:40], whole[50:], whole[40:50], whole[80:90], torch.zeros(0)]
    assert overlapping(tensors) == {0, 2, 4}
    assert overlapping([tensors[1], tensors[2], tensors[3]]) == set()
