"""memtide.hold keeps the chunks of tensors leased for a script's own kernels."""

from __future__ import annotations

from collections.abc import Iterator

import memtide
import pytest
import torch
from fake_client import FakeClient, one_chunk_each
from memtide._capi.client import Access, Places
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import FailedPrecondition, ResourceExhausted

_BUDGET = 8
_HOST_LIMIT = 6  # The rest of the budget stays free for page faults.


@pytest.fixture(params=[False, True], ids=["gpu", "host"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    client = FakeClient(handles_faults=request.param, lease_budget=_BUDGET)
    yield runtimes.start(client, Observer(), adopt_everything=True)
    runtimes.stop()


def most(runtime: Runtime) -> int:
    return _BUDGET if runtime.ledger.strict else _HOST_LIMIT


def places(runtime: Runtime, *tensors: torch.Tensor) -> set[int]:
    return {place for each in tensors for place in runtime.memory.addresses.element_places(each)}


@pytest.mark.parametrize("write", [False, True])
def test_chunks_are_leased_during_the_block_and_not_after_it(runtime: Runtime, write: bool) -> None:
    first, second, _ = one_chunk_each(3)
    runtime.client.acquired.clear()
    with memtide.hold([first, second], write=write):
        assert runtime.client.in_use() == places(runtime, first, second)
        assert {access for _, access in runtime.client.acquired} == {
            Access.WRITE if write else Access.READ
        }
    assert runtime.client.in_use() == set()


def test_one_tensor_and_a_view_of_one_can_be_held(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    with memtide.hold(parameter.view(32, -1)[3:5]):
        assert runtime.client.in_use() == places(runtime, parameter)


def test_a_block_that_raises_ends_its_hold(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    with pytest.raises(KeyError), memtide.hold(parameter):
        raise KeyError
    assert runtime.client.in_use() == set()
    assert runtime.ledger.script_holds == 0


def test_what_is_held_stays_while_operations_use_other_chunks(runtime: Runtime) -> None:
    held, *others = one_chunk_each(20)
    with memtide.hold(held):
        for other in others:
            other.add_(1)
            assert places(runtime, held) <= runtime.client.in_use()


def test_leases_ahead_of_use_give_way(runtime: Runtime) -> None:
    parameters = one_chunk_each(most(runtime))
    runtime.ledger.active = True
    for parameter in parameters[:3]:
        runtime.module_hooks.gathering([parameter]).__enter__()
    with memtide.hold(parameters[2:]):
        assert places(runtime, *parameters[2:]) <= runtime.client.in_use()


def test_more_than_may_be_held_is_refused_with_numbers_and_holds_nothing(
    runtime: Runtime,
) -> None:
    limit = most(runtime)
    parameters = one_chunk_each(limit + 1)
    with (
        pytest.raises(ResourceExhausted, match=rf"{limit + 1} chunks .* {limit} at once"),
        memtide.hold(parameters),
    ):
        pass
    assert runtime.client.in_use() == set()
    with memtide.hold(parameters[:limit]):
        pass


def test_blocks_may_nest_as_far_as_there_is_room(runtime: Runtime) -> None:
    limit = most(runtime)
    parameters = one_chunk_each(limit + 1)
    with memtide.hold(parameters[:limit]):
        with memtide.hold(parameters[:2], write=True):
            pass
        with (
            pytest.raises(ResourceExhausted, match=f"beside {limit} that are held already"),
            memtide.hold(parameters[limit]),
        ):
            pass
        assert runtime.client.in_use() == places(runtime, *parameters[:limit])
    assert runtime.client.in_use() == set()


def test_an_optimizer_does_not_step_within_the_block(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with memtide.hold(parameter), pytest.raises(FailedPrecondition, match=r"SGD .*memtide\.hold"):
        optimizer.step()
    optimizer.step()


def test_ordinary_tensors_and_scripts_without_memtide_need_nothing(runtime: Runtime) -> None:
    with memtide.hold(torch.ones(9), write=True):
        assert runtime.client.in_use() == set()
    runtimes.stop()
    with memtide.hold(torch.ones(9)):
        pass


@pytest.mark.parametrize("runtime", [False], indirect=True, ids=["gpu"])
def test_leases_that_can_end_make_room_for_a_hold(runtime: Runtime) -> None:
    parameters = one_chunk_each(_BUDGET + 1)
    complete = [runtime.ledger.keep(Places(places(runtime, *parameters[:3])), Places(()))]

    def end_one() -> bool:
        while complete:
            complete.pop().release()
            return True
        return False

    runtime._device.end_collective = end_one  # type: ignore[method-assign]
    with memtide.hold(parameters[3:]):
        assert runtime.client.in_use() == places(runtime, *parameters[3:])
