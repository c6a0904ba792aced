"""The most chunks of one step call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_client import FakeClient
from memtide._memory.leases import LeaseLedger
from memtide._optimizer_step.executor import StepCalls


def client_with(host_slots: int, device_slots: int) -> FakeClient:
    slots = device_slots or host_slots
    client = FakeClient(
        lease_budget=slots - max(1, slots // 4)
    )  # LeaseBudgetOf in daemon/engine/job.h.
    client.properties = replace(client.properties, host_slots=host_slots, device_slots=device_slots)
    return client


@pytest.mark.parametrize(
    ("host_slots", "device_slots", "most"),
    [(6, 0, 6), (16, 0, 8), (24, 0, 9), (28, 0, 10), (240, 0, 20), (6, 4, 5), (24, 12, 10)],
)
def test_a_call_may_have_whole_chunks_where_there_is_room(
    host_slots: int, device_slots: int, most: int
) -> None:
    calls = StepCalls(client_with(host_slots, device_slots))
    assert calls.most_chunks == most
    calls.close()


def test_beside_a_call_leases_have_half_of_their_room() -> None:
    for host_slots in range(19, 200):
        client = client_with(host_slots, 0)
        calls = StepCalls(client)
        assert LeaseLedger(client).leave(calls.most_chunks), host_slots
        calls.close()
