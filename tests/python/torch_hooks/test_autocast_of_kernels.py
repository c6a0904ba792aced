"""Kernels that call other operations do so under the script's autocast, on a GPU, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

LEASE_BUDGET = 100
_WIDTH = 128


def region() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def deep() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(8)])


def batch() -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(4, _WIDTH)


@torch.library.custom_op("memtide_test::twice", mutates_args=())
def twice(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(functional.linear(value, weight), weight)


@torch.library.custom_op("memtide_test::cast", mutates_args=())
def cast(value: torch.Tensor) -> torch.Tensor:
    return value @ value.t()


cast.register_autocast("cpu", torch.float16)


def library_results(model: Any) -> list[torch.Tensor]:
    value, weight = batch(), model[0][0].weight.detach()
    with torch.no_grad(), region():
        results = [model(value), twice(value, model[0][0].weight), cast(value)]
        results += [torch.linalg.pinv(weight), torch.sparse.mm(weight.to_sparse(), weight)]
        results.append(functional.affine_grid(weight[:2, :6].view(2, 2, 3), [2, 1, 8, 8], True))
        results.append(torch.cdist(value, value))
        results.append(torch.cond(torch.tensor(True), torch.sin, torch.cos, (weight,)))
        with torch.autocast("cpu", enabled=False):
            results += [twice(value, weight), cast(value)]
    return [*results, twice(value, weight)]


def test_kernels_that_call_operations_do_so_under_autocast(request: pytest.FixtureRequest) -> None:
    """Torch turns autocast off below a dispatch mode."""
    expected = library_results(deep())
    request.getfixturevalue("runtime")
    for result, plain in zip(library_results(deep()), expected, strict=True):
        assert result.dtype == plain.dtype
        assert torch.equal(result, plain)
