"""Fixtures of tests of recomputed blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from memtide._activations.recompute import Mode, Recompute
from memtide._torch_hooks.patching.attributes import Attributes
from recomputed_blocks import Block, Lambda


@pytest.fixture
def recompute() -> Iterator[Recompute]:
    recompute = Recompute(Attributes())
    yield recompute
    recompute.close()
    assert "_call_impl" not in vars(Block) and "_call_impl" not in vars(Lambda)


@pytest.fixture(params=list(Mode))
def mode(request: pytest.FixtureRequest) -> Mode:
    return Mode(request.param)


@pytest.fixture
def value() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 5, 16)
