"""The most chunks of one step call, and the calls in flight."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from fake_client import FakeClient
from memtide._memory.leases import LeaseLedger
from memtide._optimizer_step.executor import StepCalls
from memtide._optimizer_step.partition import Batch, BatchLimits


def client_with(host_slots: int, device_slots: int) -> FakeClient:
    slots = device_slots or host_slots
    client = FakeClient(lease_budget=slots - max(1, slots // 4))
    client.properties = replace(client.properties, host_slots=host_slots, device_slots=device_slots)
    return client


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))


@pytest.mark.parametrize(
    ("cores", "host_slots", "depth", "most"),
    [(2, 240, 3, 20), (16, 240, 6, 10), (16, 2400, 10, 60), (64, 24, 3, 10)],
)
def test_beside_a_gpu_calls_keep_half_of_the_cores_busy(
    cores: int, host_slots: int, depth: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    client = client_with(host_slots, device_slots=12)
    client.properties = replace(client.properties, dl_device=(2, 0))
    calls = StepCalls(client)
    assert (calls.depth, calls.limits.chunks) == (depth, most)
    calls.close()


def test_on_a_cpu_calls_are_three_on_any_machine_so_that_all_ranks_cut_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    calls = StepCalls(client_with(2400, 0))
    assert calls.depth == 3
    calls.close()


@pytest.mark.parametrize(
    ("host_slots", "device_slots", "most"),
    [(6, 0, 14), (16, 0, 14), (24, 0, 14), (28, 0, 10), (240, 0, 20), (6, 4, 14), (24, 12, 10)],
)
def test_a_call_may_have_whole_chunks_where_there_is_room(
    host_slots: int, device_slots: int, most: int
) -> None:
    calls = StepCalls(client_with(host_slots, device_slots))
    assert calls.limits.chunks == most
    calls.close()


@pytest.mark.parametrize(
    ("host_slots", "most", "apart"),
    [(6, 8, 3), (16, 8, 8), (24, 12, 12), (28, 14, 14), (240, 20, 120)],
)
def test_ranks_cut_alike_whatever_their_budget_is(host_slots: int, most: int, apart: int) -> None:
    client = client_with(host_slots, 0)
    calls = StepCalls(client)
    calls.shares = True
    expected = BatchLimits(most, apart)
    assert calls.limits == expected
    client.properties = replace(client.properties, lease_budget=1)
    assert calls.limits == expected
    calls.close()


def test_a_call_keeps_to_the_limits_that_the_daemon_sent() -> None:
    client = client_with(host_slots=240, device_slots=0)
    client.limits = replace(client.limits, chunks_per_call=5)
    calls = StepCalls(client)
    assert calls.limits == BatchLimits(chunks=5)
    calls.close()


def test_beside_an_early_call_leases_have_half_of_their_room() -> None:
    for host_slots in range(4, 200):
        client = client_with(host_slots, 0)
        calls = StepCalls(client)
        assert LeaseLedger(client).leave(calls.early_room), host_slots
        calls.close()


@pytest.mark.parametrize(("device_slots", "most"), [(0, 9), (5, 11)])
def test_a_batch_leaves_the_slot_free_through_which_chunks_pass(
    device_slots: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = StepCalls(client_with(12, device_slots))
    rooms = []

    def make(_batch: Batch, _shadows: object, room: int, **_options: bool) -> int:
        rooms.append(room)
        return 0

    monkeypatch.setattr(calls._kernels, "make", make)
    calls.make([Batch()], {})
    calls.close()
    assert rooms == [most]
