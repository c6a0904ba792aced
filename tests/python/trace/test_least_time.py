"""The least time of a step is what an exhaustive search finds, or less."""

from __future__ import annotations

import sys

import pytest
from harness import REPOSITORY
from memtide._trace.model import Chunk, Moment, Stall, Trace

sys.path.append(str(REPOSITORY / "bench" / "traces"))

import least_time  # noqa: E402
from least_time import Use  # noqa: E402


def _searched(order: list[int], steps: int, slots: int, transfer: int) -> int:
    """The least time of uses of one unit each, by trying at each unit to fetch the next missing
    chunk in the place of the one used last, or to wait."""
    uses = order * steps
    states = {(0, frozenset[int](), -1, 0)}
    units = 0
    while all(place < len(uses) for place, *_ in states):
        following = set()
        for place, there, coming, left in states:
            choices = [(there, coming, left)]
            missing = [at for at in range(place, len(uses)) if uses[at] not in there]
            if coming < 0 and missing:
                rest = uses[place:]
                victims = sorted(
                    there, key=lambda c: rest.index(c) if c in rest else len(rest), reverse=True
                )
                stays = there if len(there) < slots else there - {victims[0]}
                if len(there) < slots or victims[0] not in uses[place : missing[0]]:
                    choices.append((stays, uses[missing[0]], transfer))
            for stays, chunk, rest_units in choices:
                after = place + (uses[place] in stays)
                if chunk >= 0 and rest_units == 1:
                    following.add((after, stays | {chunk}, -1, 0))
                else:
                    following.add((after, stays, chunk, max(0, rest_units - 1)))
        states = following
        units += 1
    return units


@pytest.mark.parametrize(("slots", "transfer"), [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3), (5, 3)])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 3, 2, 1]])
def test_no_search_finds_less(order: list[int], slots: int, transfer: int) -> None:
    searched = (_searched(order, 5, slots, transfer) - _searched(order, 2, slots, transfer)) / 3
    least = least_time.least_step_s([Use(chunk, 1.0) for chunk in order], slots, transfer)
    assert len(order) <= least <= searched
    assert least >= 0.55 * searched


def test_a_long_loop_takes_nearly_as_long_as_the_chunks_that_cannot_stay() -> None:
    # At best 9 of 40 stay, as one slot is for those that come; computing takes 40.
    assert 60 <= least_time.least_step_s([Use(chunk, 1.0) for chunk in range(40)], 10, 2.0) <= 62


def test_what_is_new_is_not_fetched() -> None:
    new = [Use(chunk, 1.0, ends=True) for chunk in range(6)]
    assert least_time.least_step_s(new, 3, 10.0) == 6.0
    assert least_time.least_step_s([Use(use.chunk, 1.0) for use in new], 3, 10.0) > 20


def test_the_uses_of_an_iteration_have_its_time_without_stalls() -> None:
    uses = [((1, "free"), (0, "read"), (0, "write")), (), ((1, "allocate"), (1, "write"))]
    moments = [Moment(i, "forward", "", 0, 0, float(i), uses[i % 3]) for i in range(6)]
    trace = Trace(
        "", 7, 1 << 20, {}, {0: Chunk(0, 1, "parameter", None)}, tuple(moments), (3, 6), (),
        (Stall(3.25, 0.5, "room", 1),),
    )  # fmt: skip
    # The last moment has no end, and so no time.
    assert least_time.uses_of(trace, 0) == [Use(0, 2.0), Use(1, 1.0, ends=True)]
    assert least_time.uses_of(trace, 1) == [Use(0, 1.5), Use(1, 0.0, ends=True)]
