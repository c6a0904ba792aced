"""Which blocks are recomputed, and that a run of several iterations comes to it by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from fake_client import FakeClient
from memtide._activations import plan_without_search
from memtide._activations.activations import Activations
from memtide._activations.plan_without_search import Moves, chosen
from memtide._activations.recompute import Mode
from memtide._activations.rehearsal import Rehearsed
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from torch import nn
from torch.nn import functional

_MOVES = Moves(1000, 10.0)  # A byte costs 10 ms.
_CHEAP = Rehearsed(None, forward_s=1.0, input_bytes=50, saved_bytes=450)


def blocks_of(*rehearsed: Rehearsed) -> list[tuple[nn.Module, Rehearsed]]:
    return [(nn.Linear(1, 1), each) for each in rehearsed]


def test_blocks_are_recomputed_until_as_much_is_saved_less_as_was_moved() -> None:
    blocks = blocks_of(*[_CHEAP] * 6)
    modes = chosen(blocks, _MOVES)
    assert list(modes) == [block for block, _ in blocks[:3]]  # Each saves 400 bytes less.
    assert set(modes.values()) == {Mode.ALL_BUT_INPUT}


def test_the_last_block_is_never_recomputed() -> None:
    blocks = blocks_of(*[_CHEAP] * 3)
    assert list(chosen(blocks, Moves(10**6, 10**4))) == [block for block, _ in blocks[:2]]


def test_what_takes_longer_than_to_move_it_is_moved() -> None:
    slow = Rehearsed(None, forward_s=4.1, input_bytes=50, saved_bytes=450)
    blocks = blocks_of(slow, _CHEAP, slow, _CHEAP)
    assert list(chosen(blocks, _MOVES)) == [blocks[1][0]]


def test_the_cheapest_blocks_are_chosen_first() -> None:
    cheaper = Rehearsed(None, forward_s=0.5, input_bytes=50, saved_bytes=450)
    blocks = blocks_of(_CHEAP, _CHEAP, cheaper, _CHEAP, _CHEAP)
    assert list(chosen(blocks, Moves(300, 3.0))) == [blocks[2][0]]


def test_a_block_with_effects_is_not_recomputed() -> None:
    counting = Rehearsed("it counts", forward_s=0.1, input_bytes=50, saved_bytes=450)
    blocks = blocks_of(counting, _CHEAP, _CHEAP)
    assert list(chosen(blocks, _MOVES)) == [blocks[1][0]]


@pytest.mark.parametrize(("dear_bytes", "mode"), [(100, Mode.REST), (200, Mode.ALL_BUT_INPUT)])
def test_few_dear_results_are_kept(dear_bytes: int, mode: Mode) -> None:
    dear = Rehearsed(None, 1.0, input_bytes=50, dear_bytes=dear_bytes, saved_bytes=450)
    blocks = blocks_of(dear, _CHEAP)
    assert chosen(blocks, _MOVES) == {blocks[0][0]: mode}


def test_where_nothing_is_moved_nothing_is_recomputed() -> None:
    assert chosen(blocks_of(*[_CHEAP] * 4), Moves(0, 10.0)) == {}


class Block(nn.Module):
    """As in a transformer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.wide = nn.Linear(32, 128)
        self.narrow = nn.Linear(128, 32)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.wide(self.norm(value)))
        return value + functional.dropout(self.narrow(wide), 0.2, self.training)


class Model(nn.Module):
    """Five blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return value


@pytest.fixture
def dear_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving takes longer than any recomputation, so that the plan does not depend on a clock."""
    original = plan_without_search.chosen
    monkeypatch.setattr(
        plan_without_search,
        "chosen",
        lambda blocks, moves: original(blocks, Moves(moves.bytes, 1e6)),
    )


def train(model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def managed(allowance_bytes: int) -> Iterator[Activations]:
    runtime = runtimes.start(
        FakeClient(lease_budget=64),
        Observer(),
        adopt_everything=False,
        allowance=lambda: allowance_bytes,
    )
    assert runtime.activations is not None
    try:
        yield runtime.activations
    finally:
        runtimes.stop()


def test_a_run_that_is_short_comes_to_recompute_blocks_with_the_same_losses(
    dear_moves: None,
) -> None:
    with managed(200_000) as activations:
        losses = train(Model(), 5)
        done = activations.as_json()
        assert "_call_impl" in vars(Block)
    assert done["blocks"] == 5
    assert 1 <= done["recomputed_blocks"] <= 4
    assert done["blocks_left_alone"] == {}
    assert "_call_impl" not in vars(Block)
    assert losses == train(Model(), 5)


def test_a_run_in_which_all_fits_recomputes_nothing(dear_moves: None) -> None:
    with managed(1 << 40) as activations:
        train(Model(), 4)
        assert "_call_impl" not in vars(Block)
    assert activations.as_json() == {
        "moved_bytes": 0,
        "blocks": 5,
        "recomputed_blocks": 0,
        "is_planned": False,
        "blocks_left_alone": {},
        "outcome": {},
    }


@pytest.mark.parametrize("allowance_bytes", [1_000, 200_000])
def test_a_rehearsal_keeps_the_allowance(allowance_bytes: int, dear_moves: None) -> None:
    model = Model()
    with managed(allowance_bytes) as activations:
        train(model, 1)
        loss = model(torch.randn(64, 32)).square().mean()  # The rehearsal.
        # Tensors that the last block and the loss have saved had other users until now.
        saved_by_a_block_bytes = 64 * (2 * 32 + 2 * 128) * 4
        assert activations.kept_bytes <= allowance_bytes + saved_by_a_block_bytes
        loss.backward()
        assert activations.kept_bytes == 0


def test_a_second_run_has_the_room_of_the_first(dear_moves: None) -> None:
    allowance_bytes, saved_by_a_block_bytes = 200_000, 64 * (2 * 32 + 2 * 128) * 4
    deep = SimpleNamespace(kept_bytes=[])  # Deeper than effects are looked for.

    class Seeing(Block):
        """Notes how much is kept when it is called."""

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            deep.kept_bytes.append(activations.kept_bytes)
            return super().forward(value)

    model = Model()
    model.blocks = nn.ModuleList(Seeing() for _ in range(5))
    with managed(allowance_bytes) as activations:
        train(model, 1)
        deep.kept_bytes.clear()
        model(torch.randn(64, 32)).square().mean().backward()  # The rehearsal.
    second_runs = deep.kept_bytes[1::2]
    assert len(second_runs) == 5
    assert max(second_runs) <= allowance_bytes - saved_by_a_block_bytes


def test_blocks_are_recomputed_where_nothing_may_be_kept(dear_moves: None) -> None:
    with managed(1_000) as activations:
        losses = train(Model(), 4)
        done = activations.as_json()
    assert done["moved_bytes"] > 0
    assert done["recomputed_blocks"] > 0
    assert losses == train(Model(), 4)


def test_blocks_with_effects_are_left_alone_and_the_summary_says_why(dear_moves: None) -> None:
    model = Model()
    for block in model.blocks:
        block.register_forward_hook(lambda *_: None)
    with managed(200_000) as activations:
        train(model, 4)
        done = activations.as_json()
    assert done["recomputed_blocks"] == 0
    assert sum(done["blocks_left_alone"].values()) == 5
