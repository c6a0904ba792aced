"""The lease ledger, and the lease window."""

from __future__ import annotations

import random

import pytest
from fake_client import FakeClient
from memtide._capi.client import Access, Kind, Places
from memtide._memory.lease_window import LeaseWindow
from memtide._memory.leases import LeaseLedger


@pytest.fixture
def client() -> FakeClient:
    client = FakeClient(lease_budget=8)
    client.allocate(Kind.OTHER, 40)
    return client


@pytest.fixture
def ledger(client: FakeClient) -> LeaseLedger:
    ledger = LeaseLedger(client)
    ledger.active = True
    return ledger


def test_slots_and_budget_are_those_that_the_daemon_sent_last(
    client: FakeClient, ledger: LeaseLedger
) -> None:
    assert (ledger.slots, ledger.budget) == (10, 8)
    client.slots = 12
    ledger.refresh()
    assert (ledger.slots, ledger.budget) == (12, 8)
    client.slots, client.lease_budget = 5, 4
    ledger.refresh()
    assert (ledger.slots, ledger.budget, ledger.limit) == (5, 4, 2)


def test_a_hold_has_write_leases_until_it_ends(client: FakeClient, ledger: LeaseLedger) -> None:
    assert ledger.hold({1, 2})
    assert ledger.extend_hold({1, 2, 5})
    ledger.release_all()
    assert client.in_use() == {1, 2, 5}
    assert {access for _, access in client.acquired} == {Access.WRITE}
    assert ledger.held_chunks == 3
    ledger.end_hold()
    assert client.in_use() == set()
    assert not ledger.holding and ledger.held_chunks == 0


def test_a_hold_of_more_than_fits_leases_nothing(client: FakeClient, ledger: LeaseLedger) -> None:
    assert not ledger.hold(set(range(9)))
    assert not ledger.holding
    client.lease_budget = 2  # The ledger reads it at the next refresh only.
    assert not ledger.hold({1, 2, 3})
    assert client.in_use() == set()
    assert ledger.hold({1, 2})
    assert not ledger.extend_hold({1, 2, 3})
    assert client.in_use() == {1, 2} and ledger.held_chunks == 2


def test_without_a_hold_nothing_is_extended(client: FakeClient, ledger: LeaseLedger) -> None:
    assert ledger.extend_hold({1})
    assert client.in_use() == set() and not ledger.holding


def test_nothing_is_leased_while_everything_fits(client: FakeClient, ledger: LeaseLedger) -> None:
    ledger.active = False
    assert ledger.lease(Places([1]), Access.READ) is None
    assert client.acquired == []


def test_a_quarter_of_the_budget_is_left_for_page_faults(
    client: FakeClient, ledger: LeaseLedger
) -> None:
    token = ledger.lease(Places(range(5)), Access.READ)
    assert token is not None
    assert ledger.lease(Places([10, 11]), Access.READ) is None
    assert ledger.lease(Places([10]), Access.READ) is not None
    assert ledger.lease(Places([11]), Access.READ) is None
    token.release()
    assert client.in_use() == {10}


def test_a_lease_ends_once(client: FakeClient, ledger: LeaseLedger) -> None:
    tokens = [ledger.lease(Places([1]), Access.READ) for _ in range(2)]
    for _ in range(3):
        tokens[0].release()
    assert client.uses[1] == 1
    ledger.release_all()
    assert client.in_use() == set()
    assert ledger.room == ledger.limit


def test_a_full_daemon_is_no_error(client: FakeClient, ledger: LeaseLedger) -> None:
    client.acquire(Places(range(20, 28)), Access.READ)
    assert ledger.lease(Places([1]), Access.READ) is None


@pytest.mark.parametrize("seed", range(10))
def test_a_window_never_holds_too_much_and_ends_empty(
    seed: int, client: FakeClient, ledger: LeaseLedger
) -> None:
    draw = random.Random(seed)
    window = LeaseWindow(ledger)
    for _ in range(200):
        reads = set(draw.sample(range(40), draw.randint(0, 6)))
        writes = set(draw.sample(range(40), draw.randint(0, 3)))
        window.need(reads, writes)
        assert len(client.in_use()) <= ledger.limit
        if len(reads | writes) <= ledger.limit:
            assert reads | writes <= client.in_use()
        else:  # The whole budget is left to page faults.
            assert client.in_use() == set()
    window.close()
    assert client.in_use() == set()


def test_a_window_leases_for_writing_what_is_written(
    client: FakeClient, ledger: LeaseLedger
) -> None:
    window = LeaseWindow(ledger)
    assert not window.holds({1, 2}, {2})
    window.need({1, 2}, {2})
    assert window.holds({1, 2}, {2})
    window.need({1, 2}, set())
    assert sorted(client.acquired) == [((1,), Access.READ), ((2,), Access.WRITE)]
    assert not window.holds(set(), {1})
    window.need(set(), {1})
    assert client.acquired[-1] == ((1,), Access.WRITE)


def test_an_operation_over_more_than_fits_leaves_all_room_to_its_page_faults(
    client: FakeClient, ledger: LeaseLedger
) -> None:
    # A bug: leases of the first places of a fused step left too few for its faults; it never ended.
    window = LeaseWindow(ledger)
    window.need({1, 2}, {3})
    window.need(set(), set(range(10, 10 + ledger.limit + 1)))
    assert client.in_use() == set()
    window.close()
