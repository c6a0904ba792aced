"""Whatever a plan says is done with activations, the losses are plain torch's, to the bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from activation_runs import (
    BATCH,
    BLOCKS,
    INPUT_BYTES,
    SHORT_BYTES,
    TOKENS,
    WIDTH,
    Model,
    forcing,
    managed,
    train,
)
from memtide._activations.activations import Activations
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.planning import Profiled
from memtide._activations.profile import Part
from memtide.errors import InvalidArgument
from torch import nn

_KEEP, _HOST, _SSD = Choice.KEEP, Choice.MOVE_TO_HOST, Choice.MOVE_TO_SSD
_RECOMPUTE = Choice.RECOMPUTE
_PLENTY_BYTES = 1 << 40
_ALL_KEPT = BlockPlan(_KEEP, _KEEP, _KEEP)
_CHOICES = [
    _ALL_KEPT,
    BlockPlan(_HOST, _HOST, _HOST),
    BlockPlan(_SSD, _KEEP, _SSD),
    BlockPlan(_KEEP, _HOST, _KEEP),
    BlockPlan(_KEEP, _RECOMPUTE, _RECOMPUTE),
    BlockPlan(_HOST, _RECOMPUTE, _RECOMPUTE),
    BlockPlan(_KEEP, _KEEP, _RECOMPUTE),
    BlockPlan(_SSD, _HOST, _RECOMPUTE),
]


class Allowance:
    """Short until a plan was made, and what a test wants from then on."""

    def __init__(self) -> None:
        self.bytes = SHORT_BYTES


def planned(activations: Activations, *plans: BlockPlan, others: Choice = _KEEP) -> Model:
    """A model that has trained until the plan holds."""
    activations.planning.planner = forcing(*plans, others=others)
    model = Model()
    train(model, 3)
    assert activations.planning.plan is not None
    return model


def forward(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(3)
    return model(torch.randn(BATCH, TOKENS, WIDTH)).square().mean()


def check_same(plans: tuple[BlockPlan, ...], others: Choice, micro_batches: int) -> None:
    expected = train(Model(), 6, micro_batches)
    with managed() as activations:
        activations.planning.planner = forcing(*plans, others=others)
        model = Model()
        assert train(model, 6, micro_batches) == expected
        recomputed = [plan.rest is _RECOMPUTE for plan in plans * (BLOCKS // len(plans))]
        # Blocks are recomputed in the last three iterations, and run twice in the second.
        calls = [6 * micro_batches + 1 + 3 * micro_batches * again for again in recomputed]
        assert [block.calls for block in model.blocks] == calls
        assert activations.kept_bytes == 0


@pytest.mark.parametrize("plan", _CHOICES, ids=str)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_each_choice_gives_the_same_bits(plan: BlockPlan, micro_batches: int) -> None:
    check_same((plan,), _KEEP, micro_batches)


@pytest.mark.parametrize("first", range(0, len(_CHOICES), 2))
def test_mixtures_give_the_same_bits(first: int) -> None:
    around = itertools.islice(itertools.cycle(_CHOICES), first, first + BLOCKS)
    check_same(tuple(around), _SSD if first % 4 else _HOST, 2)


def test_what_is_to_leave_does_so_though_nothing_is_exceeded() -> None:
    allowed = SHORT_BYTES
    with managed(lambda: allowed) as activations:
        model = planned(activations, BlockPlan(_KEEP, _KEEP, _HOST))
        allowed = _PLENTY_BYTES
        activations.end_iteration()
        before = activations.moved_bytes
        loss = forward(model)
        profile = activations.planning.profiled.profile
        rest_bytes = sum(block.bytes_of(Part.REST) for block in profile.blocks)
        assert activations.moved_bytes - before == rest_bytes
        others_bytes = sum(saved.size_bytes for saved in profile.others)
        kept_of_blocks_bytes = sum(
            b.bytes_of(p) for b in profile.blocks for p in (Part.INPUT, Part.ATTENTION)
        )
        assert activations.kept_bytes == kept_of_blocks_bytes + others_bytes
        loss.backward()


def test_what_is_to_leave_does_so_at_the_end_of_its_block() -> None:
    allowed = SHORT_BYTES
    kept_bytes: list[int] = []
    with managed(lambda: allowed) as activations:
        model = planned(activations, BlockPlan(_HOST, _HOST, _HOST), others=_HOST)
        allowed = _PLENTY_BYTES
        activations.end_iteration()
        original = activations.planning._calls._ended
        activations.planning._calls._ended = lambda call: (
            original(call),
            kept_bytes.append(activations.kept_bytes),
        )
        forward(model).backward()
    # The script still has its batch, and the block's input.
    assert kept_bytes == [2 * INPUT_BYTES] * BLOCKS


def test_an_input_leaves_as_soon_as_the_script_has_dropped_it() -> None:
    allowed = SHORT_BYTES
    with managed(lambda: allowed) as activations:
        model = planned(activations, BlockPlan(_HOST, _KEEP, _KEEP))
        allowed = _PLENTY_BYTES
        activations.end_iteration()
        before = activations.moved_bytes
        value = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True).sin()
        result = model.blocks[0](value)
        assert activations.moved_bytes == before
        del value
        model.blocks[1](result).sum().backward()
        assert activations.moved_bytes == before + INPUT_BYTES


def test_what_is_to_be_kept_still_leaves_where_the_allowance_is_exceeded() -> None:
    with managed() as activations:
        model = planned(activations, _ALL_KEPT)
        before = activations.moved_bytes
        forward(model).backward()
        assert activations.moved_bytes > before


def test_a_call_that_cannot_be_recomputed_is_kept() -> None:
    expected = train(Model(), 3), forward(Model()).item()
    with managed() as activations:
        model = planned(activations, BlockPlan(_KEEP, _RECOMPUTE, _RECOMPUTE))
        calls = model.blocks[1].calls
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            loss = forward(model)
        loss.backward()
        assert model.blocks[1].calls == calls + 1
        forward(model).backward()
        assert model.blocks[1].calls == calls + 3
    assert expected[0] == train(Model(), 3)


def test_a_block_that_has_effects_is_not_recomputed_whatever_the_plan_is() -> None:
    with managed() as activations:
        activations.planning.planner = forcing(BlockPlan(_KEEP, _RECOMPUTE, _RECOMPUTE))
        model = Model()
        model.blocks[2].register_forward_hook(lambda *_: None)
        train(model, 5)
        assert activations.planning.recomputed == BLOCKS - 1
        assert [block.calls for block in model.blocks] == [8, 8, 5, 8]


def test_a_plan_for_other_blocks_is_refused() -> None:
    with managed() as activations:
        train(Model(), 3)
        with pytest.raises(InvalidArgument, match="a plan of 3 blocks, and the script has 4"):
            activations.planning.apply(ActivationPlan((_ALL_KEPT,) * 3), ())


def test_a_plan_may_come_some_iterations_after_its_profile() -> None:
    profiles: list[Profiled] = []
    with managed() as activations:
        planning = activations.planning
        planning.planner = lambda profiled: profiles.append(profiled)
        model = Model()
        train(model, 5)
        assert len(profiles) == 3 and planning.plan is None
        plan = ActivationPlan((BlockPlan(_KEEP, _RECOMPUTE, _RECOMPUTE),) * BLOCKS)
        planning.apply(plan, profiles[0].signature)
        train(model, 2)
        assert planning.plan is plan and len(profiles) == 3
        assert [block.calls for block in model.blocks] == [5 + 1 + 2 * 2] * BLOCKS
