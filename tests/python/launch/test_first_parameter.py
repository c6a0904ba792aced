"""A session opens right before the first parameter, and no earlier."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
from memtide._launch.first_parameter import FirstParameter

_WATCHED = [
    (torch.nn.Module, "register_parameter"),
    (torch.nn.Module, "__call__"),
    (torch.optim.Optimizer, "add_param_group"),
]


@pytest.fixture
def acted() -> Iterator[list[bool]]:
    """Grows when FirstParameter acts. After the test, torch is as it was."""
    before = [vars(owner)[name] for owner, name in _WATCHED]
    times: list[bool] = []
    FirstParameter(lambda: times.append(True))
    yield times
    if not times:
        torch.nn.Linear(1, 1)
    assert [vars(owner)[name] for owner, name in _WATCHED] == before


def test_a_module_with_parameters_is_the_first_to_need_a_session(acted: list[bool]) -> None:
    torch.nn.BatchNorm1d(2, affine=False)
    assert torch.nn.Dropout(0.0)(torch.ones(1)) == 1
    assert not acted
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert len(acted) == 1
    assert len(list(model.parameters())) == 4


def test_a_model_that_was_unpickled_needs_a_session_when_it_is_called() -> None:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2), file)
    times: list[bool] = []
    FirstParameter(lambda: times.append(True))
    file.seek(0)
    model = torch.load(file, weights_only=False)
    assert not times
    assert model(torch.ones(2)).shape == (2,)
    assert len(times) == 1


def test_an_optimizer_of_tensors_needs_a_session(acted: list[bool]) -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not acted
    optimizer = torch.optim.SGD([weight])
    assert len(acted) == 1
    assert optimizer.param_groups[0]["params"] == [weight]
