"""Copies of tensors in chunks: whole chunks are duplicated where that is no waste."""

from __future__ import annotations

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._capi.client import Access, Kind, Places
from memtide._memory.duplicates import Duplicates
from memtide._memory.leases import LeaseLedger
from memtide._memory.managed_memory import ManagedMemory
from memtide.errors import ResourceExhausted

_FLOATS = CHUNK_BYTES // 4


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def memory(client: FakeClient) -> ManagedMemory:
    return ManagedMemory(client, LeaseLedger(client))  # type: ignore[arg-type]


def _new(
    memory: ManagedMemory, floats: int, value: float, kind: Kind = Kind.PARAMETER
) -> torch.Tensor:
    tensor = memory.allocator.like_storage_of(torch.empty(floats), kind)
    assert tensor is not None
    return tensor.fill_(value)


def test_copies_have_the_values_and_the_layout_and_bytes_of_their_own(
    memory: ManagedMemory, client: FakeClient
) -> None:
    first, second = _new(memory, _FLOATS // 2, 1), _new(memory, 2 * _FLOATS, 2)
    wide = second.view(2, _FLOATS).t()
    copies = Duplicates([first, wide], 2)
    of_first = [copies.take(first), copies.take(first)]
    of_wide = copies.take(wide)
    assert copies.take(first) is None
    assert client.duplicated == [(0, 1, 2)]
    assert of_wide is not None
    assert of_wide.size() == wide.size()
    assert of_wide.stride() == wide.stride()
    assert torch.equal(of_wide, wide)
    for number, copied in enumerate(of_first):
        assert copied is not None
        assert torch.equal(copied, first)
        copied.fill_(10 + number)
    assert torch.equal(first, torch.ones_like(first))
    assert of_first[0] is not None
    assert of_first[0][0] == 10


def test_the_chunks_of_copies_go_with_them(memory: ManagedMemory, client: FakeClient) -> None:
    tensor = _new(memory, _FLOATS, 1)
    copies = Duplicates([tensor], 3)
    assert memory.arenas.chunks() == len(client.kinds) == 4
    one = copies.take(tensor)
    del copies
    memory.pressure.trim_all()
    assert memory.arenas.chunks() == len(client.kinds) == 2
    del one
    memory.pressure.trim_all()
    assert memory.arenas.chunks() == 1


def test_chunks_that_are_mostly_of_others_are_not_duplicated(memory: ManagedMemory) -> None:
    # Three quarters of the first chunk are another tensor's, and this one reaches into it.
    other, across = _new(memory, _FLOATS * 3 // 4, 0), _new(memory, _FLOATS // 2, 1)
    assert Duplicates([across], 1).take(across) is None
    # Together they fill five eighths of three chunks.
    behind = _new(memory, _FLOATS * 11 // 8, 2)
    assert Duplicates([across, behind], 1).take(across) is not None
    assert other[0] == 0


def test_no_other_tensor_comes_to_lie_in_duplicates(
    memory: ManagedMemory, client: FakeClient
) -> None:
    _other, tensor = _new(memory, _FLOATS // 4, 0), _new(memory, _FLOATS // 2, 1)
    copied = Duplicates([tensor], 1).take(tensor)
    assert copied is not None
    last = _new(memory, _FLOATS // 4, 2)
    assert memory.addresses.span_places(last)[0] == memory.addresses.span_places(tensor)[0]
    further = _new(memory, 300, 3)
    assert memory.addresses.span_places(further)[0] > memory.addresses.span_places(copied)[0]
    del copied
    memory.pressure.trim_all()
    assert sorted(client.kinds) == [0, 2]


def test_each_kind_is_duplicated_by_itself_and_without_room_bytes_are_copied(
    memory: ManagedMemory, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _new(memory, _FLOATS, 1, Kind.OPTIMIZER_STATE)
    parameter = _new(memory, _FLOATS, 2)
    duplicate = client.duplicate

    def refusing(places: Places, copies: int) -> int:
        if client.kinds[places.numbers[0]] is Kind.OPTIMIZER_STATE:
            raise ResourceExhausted("no room")
        return duplicate(places, copies)

    monkeypatch.setattr(client, "duplicate", refusing)
    copies = Duplicates([state, parameter], 1)
    assert copies.take(state) is None
    copied = copies.take(parameter)
    assert copied is not None
    assert memory.arenas.kind_at(copied.data_ptr()) is Kind.PARAMETER


def test_what_a_view_has_or_a_script_holds_is_not_duplicated(
    memory: ManagedMemory, client: FakeClient
) -> None:
    tensor = _new(memory, 2 * _FLOATS, 1)
    assert Duplicates([tensor[:_FLOATS]], 1).take(tensor) is None
    ledger = memory.ledger
    ledger.count_script_holds(1)
    assert Duplicates([tensor], 1).take(tensor) is None
    ledger.count_script_holds(-1)
    lease = ledger.lease_also(Places([0]), Access.READ)
    assert lease is not None
    assert Duplicates([tensor], 1).take(tensor) is not None, "a lease ahead of its use has ended"


def test_a_call_makes_no_more_than_it_may(
    memory: ManagedMemory, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = client.limits.__class__(**{**vars(client.limits), "chunks_per_call": 5})
    monkeypatch.setattr(client, "limits", limits)
    tensor = _new(memory, 2 * _FLOATS, 7)
    copies = Duplicates([tensor], 3)
    assert client.duplicated == [(0, 1), (0, 1)]
    made = [copies.take(tensor) for _ in range(3)]
    assert all(copied is not None and torch.equal(copied, tensor) for copied in made)


def test_what_will_have_no_room_when_it_is_written_is_not_duplicated() -> None:
    client = FakeClient(places=5)
    memory = ManagedMemory(client, LeaseLedger(client))  # type: ignore[arg-type]
    tensor = _new(memory, 2 * _FLOATS, 1)
    assert Duplicates([tensor], 2).take(tensor) is None
    assert Duplicates([tensor], 1).take(tensor) is not None


def test_tensors_outside_of_chunks_have_no_duplicates(memory: ManagedMemory) -> None:
    tensor = torch.ones(_FLOATS)
    assert Duplicates([tensor], 1).take(tensor) is None
