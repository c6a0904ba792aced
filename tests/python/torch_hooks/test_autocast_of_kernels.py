"""Kernels that call other operations do so under the script's autocast, on a GPU, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from autocasting import FEW_CHUNKS, batch, deep, region
from torch.nn import functional

LEASE_BUDGET = FEW_CHUNKS


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
