"""Arenas of activations: which chunks an iteration gets, and when their content ends."""

from __future__ import annotations

import gc

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Access, Home, Kind, Places
from memtide._memory.activation_arena import ActivationArena
from memtide._memory.arena import Storages
from memtide._memory.leases import LeaseLedger
from memtide._memory.managed_memory import ManagedMemory
from memtide.errors import ResourceExhausted


def new_arena(client: FakeClient) -> ActivationArena:
    return ActivationArena(Storages(client), Home.LOWEST)


def save(arena: ActivationArena, chunks: int) -> list[torch.Tensor]:
    """As many tensors of a chunk each, as forward saves them."""
    return [arena.empty([CHUNK_BYTES], [1], torch.uint8) for _ in range(chunks)]


def places(client: FakeClient, tensors: list[torch.Tensor]) -> list[int]:
    return [(t.data_ptr() - client.properties.base) // CHUNK_BYTES for t in tensors]


def use(arena: ActivationArena, saved: list[torch.Tensor]) -> None:
    """As backward does, from the last one on."""
    while saved:
        saved.pop()
        gc.collect()
        arena.discard_dead()


def test_an_iteration_gets_the_chunks_of_the_last_one_in_the_same_order() -> None:
    client = FakeClient()
    arena = new_arena(client)
    orders = []
    for _ in range(3):
        for _ in range(2):  # Two micro-batches need no more chunks than one.
            saved = save(arena, 20)
            orders.append(places(client, saved))
            use(arena, saved)
        arena.end_iteration()
    assert orders == [list(range(20))] * 6
    assert set(client.kinds) == set(range(20))


def test_dead_chunks_are_discarded_soon_and_together() -> None:
    client = FakeClient()
    arena = new_arena(client)
    saved = save(arena, 40)
    most_dead = 0
    while saved:
        saved.pop()
        gc.collect()
        arena.discard_dead()
        dead = 40 - len(saved) - sum(map(len, client.discarded))
        most_dead = max(most_dead, dead)
    assert most_dead <= 40 / 8
    assert len(client.discarded) < 25
    arena.end_iteration()
    assert sorted(sum(client.discarded, ())) == list(range(40))
    assert len(client.kinds) == 40


def test_a_chunk_with_something_live_is_not_discarded() -> None:
    client = FakeClient()
    arena = new_arena(client)
    saved = [arena.empty([CHUNK_BYTES // 4], [1], torch.uint8) for _ in range(8)]
    saved[1].fill_(7)
    del saved[2:], saved[0]
    gc.collect()
    arena.end_iteration()
    assert client.discarded == [(1,)]
    assert saved[0].eq(7).all()


def test_dead_content_is_discarded_before_its_chunk_is_used_again() -> None:
    client = FakeClient()
    arena = new_arena(client)
    saved = save(arena, 20)
    saved.pop(0)  # Too few to be discarded for their memory.
    gc.collect()
    arena.discard_dead()
    assert client.discarded == []
    again = save(arena, 1)
    assert places(client, again) == [0] and client.discarded == [(0,)]
    del again
    assert len(saved) == 19


def test_a_chunk_in_use_is_discarded_another_time() -> None:
    client = FakeClient()
    arena = new_arena(client)
    save(arena, 2)
    gc.collect()
    client.acquire(Places([0]), Access.WRITE)
    arena.end_iteration()
    assert client.discarded == []
    client.release(Places([0]))
    arena.end_iteration()
    assert client.discarded == [(0, 1)]


def test_chunks_that_an_iteration_did_not_need_are_freed() -> None:
    client = FakeClient()
    arena = new_arena(client)
    for chunks in (20, 8):
        saved = save(arena, chunks)
        use(arena, saved)
        arena.end_iteration()
        assert set(client.kinds) == set(range(chunks))
    arena.close()
    assert client.kinds == {}


def test_a_pool_that_is_full_is_asked_once_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(places=4)
    calls = []
    allocate = client.allocate
    monkeypatch.setattr(
        client, "allocate", lambda *arguments: calls.append(1) or allocate(*arguments)
    )
    arena = new_arena(client)
    saved = save(arena, 4)
    for _ in range(3):
        with pytest.raises(ResourceExhausted):
            save(arena, 1)
    assert len(calls) == 4 + 1
    saved.clear()
    gc.collect()
    arena.end_iteration()
    assert places(client, save(arena, 1)) == [0]


def memory_with_device(most_host_homes: int) -> tuple[ManagedMemory, FakeClient]:
    client = FakeClient(handles_faults=False)
    client.most_host_homes = most_host_homes
    return ManagedMemory(client, LeaseLedger(client)), client


def test_activations_reach_ssd_only_where_that_is_allowed() -> None:
    memory, client = memory_with_device(most_host_homes=2)
    size = ((CHUNK_BYTES,), (1,), torch.uint8)
    saved = [memory.allocator.activation(*size) for _ in range(2)]
    assert client.host_homes == {0, 1}
    with pytest.raises(ResourceExhausted):
        memory.allocator.activation(*size)
    saved.append(memory.allocator.activation(*size, allow_ssd=True))
    saved.append(memory.allocator.activation(*size, home=Home.LOWEST))
    assert client.kinds == dict.fromkeys(range(4), Kind.ACTIVATION) and client.host_homes == {0, 1}
    assert len({tensor.data_ptr() for tensor in saved}) == 4


def test_without_a_device_activations_have_their_home_on_ssd() -> None:
    client = FakeClient()
    memory = ManagedMemory(client, LeaseLedger(client))
    memory.allocator.activation((64,), (1,), torch.uint8)
    assert client.kinds and not client.host_homes


def test_steps_do_not_count_activations_and_prediction_does() -> None:
    client = FakeClient(lease_budget=8)
    memory = ManagedMemory(client, LeaseLedger(client))
    saved = [memory.allocator.activation((CHUNK_BYTES,), (1,), torch.uint8) for _ in range(20)]
    assert memory.pressure.exceeds_lease_budget() and not memory.pressure.overflows()
    saved.clear()
    gc.collect()
    memory.pressure.end_activations()
    # They come again: moments and the end of the iteration are to be reported.
    assert memory.ledger.active and not memory.pressure.overflows()
    memory.pressure.trim_all()
    assert client.kinds == {} and not memory.ledger.active
