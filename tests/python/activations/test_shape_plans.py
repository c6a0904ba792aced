"""Each shape of an iteration has a plan of its own, of the latest few."""

from __future__ import annotations

from activation_runs import BATCH, BLOCKS, Model, managed, train
from memtide._activations.plan import ActivationPlan, BlockPlan, Choice
from memtide._activations.planning import Profiled
from memtide._activations.shape_plans import ShapePlans

_RECOMPUTED = BlockPlan(Choice.KEEP, Choice.RECOMPUTE, Choice.RECOMPUTE)


def plan(number: int = 0) -> ActivationPlan:
    return ActivationPlan(slots=number)


def test_the_plan_used_latest_is_that_of_iterations_that_begin_alike() -> None:
    plans = ShapePlans()
    plans.remember(("a", "b"), plan(1))
    plans.remember(("a", "c"), plan(2))
    plans.remember(("d", "b"), plan(3))
    assert plans.plan_beginning("a") == plan(2)
    assert plans.plan_of(("a", "b")) == plan(1)
    assert plans.plan_beginning("a") == plan(1)
    assert plans.plan_beginning("b") is None and plans.plan_of(("a",)) is None


def test_what_was_used_least_recently_is_forgotten() -> None:
    plans = ShapePlans(most=3)
    for number in range(3):
        plans.remember((number,), plan(number))
    plans.plan_beginning(0)
    plans.remember((3,), plan(3))
    assert [plans.plan_beginning(number) is not None for number in range(4)] == [
        *(True, False, True, True)
    ]


def test_an_iteration_without_blocks_has_a_plan_too() -> None:
    plans = ShapePlans()
    plans.remember((), plan(1))
    assert plans.plan_of(()) == plan(1)
    assert plans.plan_beginning("a") is None


def test_shapes_that_come_again_are_worth_a_profile_once() -> None:
    plans = ShapePlans()
    assert not plans.wants_profile("a")
    plans.miss(("a", "b"))
    assert plans.wants_profile("a")
    assert not plans.wants_profile("a")  # It was another iteration, perhaps.
    plans.miss(("a", "b"))
    assert not plans.wants_profile("a")
    plans.miss(("a", "c"))
    assert plans.wants_profile("a")
    plans.miss(("d",))
    plans.remember(("d",), plan())
    assert not plans.wants_profile("d")


def test_the_shapes_without_a_plan_that_are_remembered_are_few() -> None:
    plans = ShapePlans(most=2)
    for number in range(4):
        plans.miss((number,))
    assert [plans.wants_profile(number) for number in range(4)] == [False, False, True, True]


def test_a_plan_returns_with_its_shapes_at_the_first_block() -> None:
    profiles: list[Profiled] = []

    def planner(profiled: Profiled) -> ActivationPlan:
        profiles.append(profiled)
        return ActivationPlan((_RECOMPUTED,) * BLOCKS, slots=len(profiles))

    with managed() as activations:
        planning = activations.planning
        planning.planner = planner
        model = Model()
        train(model, 3)
        assert planning.plan.slots == 1
        train(model, 1, batch=BATCH + 1)
        assert planning.plan.slots == 1  # They may never come again.
        train(model, 1)
        train(model, 1, batch=BATCH + 1)
        assert planning.plan.slots == 2
        assert profiles[1].signature != profiles[0].signature
        assert profiles[1].profile.blocks[0].saved[0].size_bytes * BATCH == (
            profiles[0].profile.blocks[0].saved[0].size_bytes * (BATCH + 1)
        )
        seen = []
        first_block = model.blocks[0].register_forward_hook(
            lambda *_: seen.append(planning.plan.slots)
        )
        for batch in (BATCH, BATCH + 1, BATCH + 1, BATCH):
            train(model, 1, batch=batch)
        first_block.remove()
        assert seen == [1, 2, 2, 1]
    assert len(profiles) == 2


def test_shapes_that_never_come_again_keep_the_plan() -> None:
    with managed() as activations:
        activations.planning.planner = lambda _: ActivationPlan((_RECOMPUTED,) * BLOCKS)
        model = Model()
        train(model, 3)
        first = activations.planning.profiled
        for batch in range(1, 13):
            train(model, 1, batch=batch)
            assert activations.planning.recomputed == BLOCKS
        assert activations.planning.profiled is first
