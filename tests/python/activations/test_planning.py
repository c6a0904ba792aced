"""The planning says why blocks are left alone before any of them has run a second time."""

from __future__ import annotations

import torch
from memtide._activations.block_plan import Moves
from memtide._activations.choices import Choices
from memtide._activations.kept_storages import KeptStorages
from memtide._activations.planning import Planning
from memtide._torch_hooks.attributes import Attributes
from recomputed_blocks import Block
from torch import nn

_MIB = 2**20
_BLOCKS = 3


def _reasons(moved_bytes: int, allowance_bytes: int) -> dict[str, int]:
    """Those that are known after one iteration of three blocks."""
    planning = Planning(Attributes, KeptStorages(), [], lambda: None, Choices())
    model = nn.Sequential(*(Block() for _ in range(_BLOCKS)))
    planning.open()
    try:
        model(torch.randn(2, 3, 16)).sum().backward()
        planning.end_iteration(Moves(moved_bytes, 1.0), allowance_bytes)
        assert planning.blocks == _BLOCKS
        return dict(planning.reasons)
    finally:
        planning.close()


def test_blocks_that_the_budget_is_too_small_to_rehearse_are_left_alone_with_both_sizes() -> None:
    assert _reasons(moved_bytes=90 * _MIB, allowance_bytes=50 * _MIB) == {
        "to try it takes about 60.0 MiB, of the 50.0 MiB that the budget leaves for activations": 3
    }


def test_blocks_that_the_budget_leaves_room_to_rehearse_are_not_refused() -> None:
    assert _reasons(moved_bytes=90 * _MIB, allowance_bytes=60 * _MIB) == {}
