"""When a part of a step can be speculative, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memtide._optimizer_step.partition import Geometry, Interval, Span, Update
from memtide._optimizer_step.speculative_plan import ParameterSlot, SpeculativePlan
from rank_batches import adam_options

CHUNK = 4096
BASE = 1 << 20
GEOMETRY = Geometry(BASE, CHUNK)
OPTIONS = adam_options()  # Their step is the third.


def at(place: int, offset: int = 0) -> int:
    return BASE + place * CHUNK + offset


def slot(parameter: int, gradient: int, expected: int = 1, elements: int = 512) -> ParameterSlot:
    """A parameter of half a chunk by default; its state is 100 places further on."""
    written = (Span(parameter, 4), Span(parameter + 100 * CHUNK, 4))
    return ParameterSlot(Update(OPTIONS, elements, Span(gradient, 4), written), 0, expected)


def half(number: int) -> int:
    return at(10, number * CHUNK // 2)


def plan_of(*slots: ParameterSlot, most_chunks: int = 5) -> SpeculativePlan:
    plan = SpeculativePlan(slots, {}, GEOMETRY, most_chunks)
    assert plan.advance(slots, {})
    return plan


def record(plan: SpeculativePlan, parameter: int, gradient: int, times: int = 1) -> list[list[int]]:
    """By unit that can be computed now, the addresses in parameters at which its pieces begin."""
    units = plan.record_gradient(parameter, times, gradient)
    return [[piece.address for piece in unit.pieces] for unit in units]


def sizes(plan: SpeculativePlan) -> list[list[int]]:
    """The elements of each unit's pieces."""
    return [[piece.elements for piece in unit.pieces] for unit in plan.units]


def test_units_are_what_lies_in_the_same_few_chunks() -> None:
    plan = plan_of(*(slot(half(i), at(0, i * CHUNK // 2)) for i in range(6)))
    assert sizes(plan) == [[512, 512]] * 3
    assert plan.cuts == {half(0), half(2), half(4)}
    # One parameter lies over three chunks, and shares the last with another.
    large = plan_of(slot(half(0), at(0), elements=2560), slot(half(5), at(3)), most_chunks=6)
    assert sizes(large) == [[1024], [1024], [512, 512]]
    assert large.cuts == {half(0), half(2), half(4)}
    two_at_a_time = plan_of(slot(half(0), at(0), elements=2560), most_chunks=10)
    assert sizes(two_at_a_time) == [[2048], [512]]


def test_states_with_borders_of_their_own_cut_too() -> None:
    one = slot(half(0), at(0), elements=1024)
    shifted = (one.update.written[0], Span(at(110, 1024), 4))
    plan = plan_of(replace(one, update=replace(one.update, written=shifted)))
    assert sizes(plan) == [[768], [256]]


def test_a_unit_is_stepped_with_the_elements_of_its_pieces() -> None:
    plan = plan_of(slot(half(0), 0, elements=1536))
    (units,) = [plan.record_gradient(half(0), 1, at(0, 8))]
    first, second = (plan.updates_of(unit, [{"lr": 0.1}]) for unit in units)
    assert [update.elements for update in first + second] == [1024, 512]
    assert second[0].gradient == Span(at(1, 8), 4)
    assert second[0].written == (Span(at(11), 4), Span(at(111), 4))


def test_a_unit_waits_for_its_last_gradient_and_for_the_one_behind_it() -> None:
    plan = plan_of(*(slot(half(i), 0) for i in range(4)))
    assert record(plan, half(3), at(0)) == []
    assert record(plan, half(2), at(0, CHUNK // 2)) == []  # The next gradient may lie beside it.
    assert record(plan, half(1), at(1)) == [[half(2), half(3)]]
    assert record(plan, half(0), at(1, CHUNK // 2)) == [
        [half(0), half(1)]
    ]  # No gradient is pending.


def test_a_unit_waits_for_the_parameter_that_shares_its_chunk() -> None:
    # The state of the second begins a chunk, while its parameter shares one with the first.
    first, second = slot(half(0), 0), slot(half(1), 0)
    written = (second.update.written[0], Span(at(120), 4))
    plan = plan_of(
        first, replace(second, update=replace(second.update, written=written)), most_chunks=5
    )
    assert sizes(plan) == [[512], [512]]
    assert record(plan, half(1), at(0)) == []
    assert record(plan, half(0), at(2)) == [[half(1)], [half(0)]]


def test_a_unit_waits_for_gradients_that_are_to_be_written_beside_its_own() -> None:
    plan = plan_of(*(slot(half(i), 0, expected=2) for i in range(4)))
    gradients = {half(i): at(0, i * 2048) for i in range(4)}
    for address, gradient in gradients.items():
        assert record(plan, address, gradient) == []
    assert record(plan, half(3), gradients[half(3)], 2) == []
    assert record(plan, half(2), gradients[half(2)], 2) == []
    assert record(plan, half(1), gradients[half(1)], 2) == [[half(2), half(3)]]
    plan = plan_of(slot(half(0), 0), slot(at(20), 0))
    plan.set_gradients({half(0): at(0), at(20): at(0, 2048)})
    assert record(plan, half(0), at(0)) == []
    assert record(plan, at(20), at(0, 2048)) == [[half(0)], [at(20)]]


def test_more_gradients_than_last_time_end_all_hope_for_this_step() -> None:
    plan = plan_of(slot(half(0), 0), slot(half(2), 0))
    assert plan.worth_attempting
    record(plan, half(0), at(0))
    assert record(plan, half(0), at(0), 2) == []
    assert not plan.worth_attempting
    assert record(plan, half(2), at(1)) == []
    assert plan.advance(list(plan.slots.values()), {})
    assert plan.worth_attempting


def test_hope_begins_with_two_steps_that_were_alike() -> None:
    first = slot(half(0), at(0))
    plan = SpeculativePlan([first], {}, GEOMETRY, 5)
    assert not plan.worth_attempting
    assert not plan.advance([replace(first, expected=2)], {})
    assert not plan.advance([first, slot(half(2), at(1))], {})
    assert not plan.advance([slot(half(2), at(1))], {})
    assert plan.advance([slot(half(0), at(7))], {})
    assert plan.worth_attempting


def test_rests_grow_up_to_64_steps_and_end_with_success() -> None:
    one = slot(half(0), at(0))
    plan = plan_of(one)

    def rest() -> int:
        steps = -1
        while True:
            plan.advance([one], {})
            steps += 1
            if plan.worth_attempting:
                return steps

    rests = []
    for _ in range(8):
        plan.record_outcome(useful=False)
        rests.append(rest())
    assert rests == [2, 4, 8, 16, 32, 64, 64, 64]
    plan.record_outcome(useful=True)
    plan.record_outcome(useful=False)
    assert rest() == 2


def test_the_next_step_has_the_options_of_its_group_now() -> None:
    group = {"lr": 1, "betas": (0.8, 0.95), "weight_decay": 0.5, "amsgrad": False, "foreach": None}
    options = replace(OPTIONS, fresh_states=True).following(group)
    assert options == replace(
        adam_options(lr=1, beta1=0.8, beta2=0.95, weight_decay=0.5), step=OPTIONS.step + 1
    )
    # SGD does not count its steps.
    uncounted = replace(OPTIONS, call=replace(OPTIONS.call, steps=None))
    assert uncounted.following({"lr": 0.2}).step == OPTIONS.step


def test_what_is_copied_goes_with_the_first_unit_that_writes_the_place() -> None:
    copies = {10: [(at(10, 8), at(10, 16))], 12: [(at(12), at(12, 4))]}
    slots = [slot(half(0), 0, elements=1536), slot(half(3), 0), slot(half(4), 0)]
    plan = SpeculativePlan(slots, copies, GEOMETRY, 6)

    def copied() -> list[dict[int, Sequence[Interval]]]:
        return [{place: c for place, c in unit.copies.items() if c} for unit in plan.units]

    assert copied() == [{10: copies[10]}, {}, {12: copies[12]}]
    assert plan.advance(slots, {12: copies[12]})
    assert copied() == [{}, {}, {12: copies[12]}]
