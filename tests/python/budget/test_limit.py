"""The memory that one limit leaves for activations."""

from __future__ import annotations

import pytest
from memtide._activations.limit import Limit, Reading

_LIMIT, _POOL = 16_000, 3_000


@pytest.fixture
def limit() -> Limit:
    """A limit after its first iteration. Its slack is 1000."""
    limit = Limit(_LIMIT, _POOL)
    limit.end_iteration()
    return limit


def test_activations_get_what_all_others_leave(limit: Limit) -> None:
    limit.note(Reading(own_bytes=2000, fixed_bytes=500, pool_bytes=_POOL, kept_bytes=7))
    assert limit.allowance_bytes == _LIMIT - 1000 - 2000 - 500 - _POOL
    assert limit.most_used_bytes == 2000 + 500 + _POOL + 7


def test_the_first_iteration_has_twice_the_slack() -> None:
    limit = Limit(_LIMIT, _POOL)
    limit.note(Reading(2000, 500, _POOL, 0))
    assert limit.allowance_bytes == _LIMIT - 2000 - 2000 - 500 - _POOL


def test_a_peak_counts_until_an_iteration_has_passed_without_it(limit: Limit) -> None:
    limit.note(Reading(5000, 0, _POOL, 0))
    with_peak = limit.allowance_bytes
    for _ in range(2):
        limit.note(Reading(1000, 0, _POOL, 0))
        assert limit.allowance_bytes == with_peak
        limit.end_iteration()
    limit.note(Reading(1000, 0, _POOL, 0))
    assert limit.allowance_bytes == with_peak + 4000
    assert limit.most_own_bytes == 5000


def test_room_that_the_pool_may_take_again_is_not_given_away(limit: Limit) -> None:
    limit.note(Reading(2000, 0, 1000, 0))
    assert limit.allowance_bytes == _LIMIT - 1000 - 2000 - _POOL


def test_a_pool_that_is_to_shrink_counts_until_it_has(limit: Limit) -> None:
    limit.note(Reading(11_000, 0, _POOL, 0))
    assert limit.allowance_bytes == 1000
    limit.note(Reading(11_000, 0, 1800, 0))
    assert limit.allowance_bytes == 4000 - 1800
    limit.note(Reading(11_000, 0, 900, 0))
    assert limit.allowance_bytes == 4000 - 1800, "45 % are the pool's"


def test_there_is_never_less_than_nothing(limit: Limit) -> None:
    limit.note(Reading(20_000, 0, _POOL, 0))
    assert limit.allowance_bytes == 0


def test_peaks_can_be_forgotten(limit: Limit) -> None:
    limit.note(Reading(9000, 0, _POOL, 0))
    limit.forget_peaks()
    limit.note(Reading(2000, 0, _POOL, 0))
    assert limit.allowance_bytes == _LIMIT - 1000 - 2000 - _POOL


def test_of_a_rise_the_more_that_was_kept_is_not_the_script_s_own(limit: Limit) -> None:
    limit.note(Reading(2000, 0, _POOL, kept_bytes=900))
    limit.note(Reading(2000, 0, _POOL, kept_bytes=100, most_bytes=4900))
    assert limit.most_own_bytes == 4000
    assert limit.most_used_bytes == 4900 + _POOL
    limit.note(Reading(2000, 0, _POOL, kept_bytes=100, most_bytes=4200))
    assert limit.most_own_bytes == 4100
