"""Lease dispatch is off only while the script's own memory has headroom."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lease_dispatched import Training, begins_phase, stack, stats_of_cuda
from memtide._torch_hooks.runtime import Runtime


@pytest.mark.parametrize(("reserved_bytes", "covered"), [(1125, False), (1126, True)])
def test_the_script_needs_headroom(
    runtime: Runtime, cuda: dict[str, Any], reserved_bytes: int, covered: bool
) -> None:
    training = Training().warm_up()
    cuda.update(stats_of_cuda(reserved_bytes=reserved_bytes))
    assert begins_phase(runtime, training) == covered


@pytest.mark.parametrize(("reserved_bytes", "covered"), [(-1, False), (0, True)])
def test_before_the_first_phase_it_needs_room_for_gradients_too(
    runtime: Runtime, cuda: dict[str, Any], reserved_bytes: int, covered: bool
) -> None:
    training = Training()
    training.step()
    gradient_bytes = runtime.memory.arenas.gradients.peak_bytes
    assert gradient_bytes == 2 * training.model[0].weight.nbytes
    cuda.update(stats_of_cuda(reserved_bytes=1126 + gradient_bytes + reserved_bytes))
    training.step()
    assert begins_phase(runtime, training) == covered


def test_a_script_that_has_run_short_keeps_lease_dispatch(
    runtime: Runtime, cuda: dict[str, Any]
) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20))
    training.warm_up().step()
    assert begins_phase(runtime, training)
    training.optimizer.step()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20, ooms=4))
    assert not begins_phase(runtime, training)


def test_an_allocator_that_counts_nothing_keeps_lease_dispatch(
    runtime: Runtime, cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: Any) -> dict[str, Any]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", refuse)
    assert not begins_phase(runtime, Training().warm_up())


def test_a_peak_that_the_script_resets_counts(runtime: Runtime, cuda: dict[str, Any]) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20))
    training.warm_up()
    assert begins_phase(runtime, training)
    training.optimizer.step()
    cuda.update(stats_of_cuda(reserved_bytes=1024))
    cuda["allocated_bytes"] = {"all": {"current": 0, "peak": 10}}
    assert not begins_phase(runtime, training)


def test_a_phase_without_room_is_asked_for_once_an_iteration(
    runtime: Runtime, cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    cuda.update(stats_of_cuda(reserved_bytes=0))
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: calls.append(1) or (0, 0))
    for _ in range(3):
        training.step()
    # In one of the three, gradients return to chunks. Nodes of leaf modules ask in each.
    assert len(calls) == 2 + 3


def test_a_shortage_during_a_phase_evicts_nothing(runtime: Runtime) -> None:
    training = Training().warm_up()
    assert begins_phase(runtime, training)
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
    assert runtime._gpu is not None
    with pytest.raises(torch.OutOfMemoryError):
        runtime._gpu.elastic.retry(short, lambda: pytest.fail("it is not run again"))


def test_a_state_beside_a_full_hold_is_in_ordinary_memory(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training().warm_up()
    assert begins_phase(runtime, training)
    monkeypatch.setattr(runtime.ledger, "extend_hold", lambda _places: False)
    state = runtime.memory.allocator.state(
        torch.empty(1 << 20, device="meta"), 7, training.model[0].weight
    )
    assert state.numel() == 1 << 20 and not runtime.memory.addresses.manages(state)


@pytest.mark.parametrize(("more_bytes", "covered"), [(100, True), (101, False)])
def test_what_the_script_has_come_to_keep_needs_room_beside_its_peak(
    runtime: Runtime, cuda: dict[str, Any], more_bytes: int, covered: bool
) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20, current_bytes=500))
    training.warm_up().step()
    cuda.update(stats_of_cuda(reserved_bytes=1126 + 100, current_bytes=500 + more_bytes))
    assert begins_phase(runtime, training) == covered


def test_a_shortage_in_a_phase_ends_it_and_no_other_begins(
    runtime: Runtime, cuda: dict[str, Any]
) -> None:
    training = Training()
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20))
    for _ in range(5):  # It zeroes gradients in phases, too.
        loss = training.forward()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
    training.forward()
    assert runtime.ledger.holding
    cuda.update(stats_of_cuda(reserved_bytes=1 << 20, ooms=4))
    training.optimizer.zero_grad()
    assert not runtime.ledger.holding and len(stack()) == 1
    training.forward()
    assert not runtime.ledger.holding
