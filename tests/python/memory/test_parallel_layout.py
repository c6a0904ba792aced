"""Gradients and states lie at the offsets of their parameters."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._memory.parallel_layout import ParallelLayout, Position
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from torch import nn

ALIGNMENT = 64


def offset(position: Position | None) -> int:
    assert position is not None
    return position.offset


def test_offsets_are_in_the_order_of_addresses() -> None:
    layout = ParallelLayout(4096, ALIGNMENT)
    layout.extend([(1024, 1000), (0, 1024), (2048, 8192)])
    assert [offset(layout.position_of(at, n, n)) for at, n in [(0, 1024), (1024, 1000)]] == [
        0,
        1024,
    ]
    assert offset(layout.position_of(2048, 8192, 8192)) == 2048
    assert layout.end == 2048 + 8192


def test_states_of_other_sizes_are_at_multiples_or_anywhere() -> None:
    layout = ParallelLayout(4096, ALIGNMENT)
    layout.extend([(0, 1024), (1024, 4096)])
    twice = layout.position_of(1024, 4096, 8192)
    assert twice is not None
    assert (twice.offset, twice.run.start, twice.run.end) == (2048, 0, 2 * 5120)
    assert layout.position_of(1024, 4096, 2048) is None  # Half of it would not be aligned.
    assert layout.position_of(1024, 4096, 4) is None
    assert layout.position_of(5120, 4096, 4096) is None  # Not laid out.


@pytest.mark.parametrize(("chunks", "into_chunk"), [(8, 1000 * 64), (7, 0)])
def test_behind_frozen_parameters_many_others_begin_as_far_into_their_chunk(
    chunks: int, into_chunk: int
) -> None:
    chunk_bytes = 2 << 20
    layout = ParallelLayout(chunk_bytes, ALIGNMENT)
    first = 5 * chunk_bytes + 1000 * 64
    layout.extend([(first, chunks * chunk_bytes)])
    assert offset(layout.position_of(first, chunks * chunk_bytes, chunks * chunk_bytes)) == (
        into_chunk
    )


def test_small_parameters_between_frozen_ones_are_packed() -> None:
    layout = ParallelLayout(4096, ALIGNMENT)
    layout.extend((at * 10000, 128) for at in range(100))
    assert layout.end == 100 * 128


def test_an_optimizer_of_few_chunks_is_not_laid_out_behind_another() -> None:
    layout = ParallelLayout(4096, ALIGNMENT)
    layout.extend([(0, 6000)])
    layout.extend([(6016, 4096)])
    assert layout.position_of(6016, 4096, 4096) is None
    layout.extend([(6016, 8 * 4096)])
    later = layout.position_of(6016, 8 * 4096, 8 * 4096)
    assert later is not None
    assert later.offset == 6016, "as in the arena of parameters"
    assert later.run.start == 4096, "a run begins with a chunk"


class Blocks(nn.Module):
    """Several blocks of matrices that are larger than the smallest managed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(90, 70)
        self.blocks = nn.ModuleList(nn.Linear(70, 70, bias=False) for _ in range(12))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.first(tokens)
        for block in self.blocks:
            hidden = block(hidden).tanh()
        return hidden.square().mean()


@pytest.fixture
def _pressure() -> Iterator[None]:
    runtimes.start(FakeClient(lease_budget=30), Observer(), adopt_everything=True)
    yield
    runtimes.stop()


@pytest.mark.usefixtures("_pressure")
def test_gradients_and_states_lie_as_their_parameters_do() -> None:
    torch.manual_seed(0)
    model = Blocks()
    # Groups for weight decay have another order than the model.
    decayed = random.Random(0).sample([block.weight for block in model.blocks], 12)
    groups = [{"params": decayed}, {"params": [model.first.weight], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(90).view(2, 45)).backward()
        optimizer.step()
    distances = set()
    for parameter in model.parameters():
        states = optimizer.state[parameter]
        for row, tensor in enumerate((parameter.grad, states["exp_avg"], states["exp_avg_sq"])):
            assert tensor is not None
            distances.add((row, tensor.data_ptr() - parameter.data_ptr()))
    assert len(distances) == 3, "each kind is moved as a whole"
    assert all(distance % CHUNK_BYTES == 0 for _, distance in distances)
