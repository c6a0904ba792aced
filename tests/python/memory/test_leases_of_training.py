"""Which leases an adopted model holds, and when its chunks are freed; one process, no daemon."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def manages(runtime: Runtime, *tensors: torch.Tensor | None) -> list[bool]:
    return [tensor is not None and runtime.memory.addresses.manages(tensor) for tensor in tensors]


def test_saving_hands_no_chunk_to_the_kernel_that_may_not_fault_it_in(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(64, 64)
    torch.save(plain.state_dict(), tmp_path / "plain")
    runtime = runtimes.start(FakeClient(kernel_faults=False), Observer(), adopt_everything=True)
    try:
        ours = copy.deepcopy(plain)
        assert manages(runtime, ours.weight) == [True]
        written: list[int] = []
        save = torch.serialization._save.__wrapped__

        class Watching(torch._C.PyTorchFileWriter):
            def write_record(self, name: str, data: Any, size: int) -> None:
                if isinstance(data, torch.UntypedStorage):
                    written.append(data.data_ptr())
                super().write_record(name, data, size)

        assert save is not torch.serialization._save
        with (tmp_path / "watched").open("wb") as file:
            writer = Watching(file)
            torch.serialization._save(
                ours.state_dict(), writer, torch.serialization.pickle, 2, False
            )
            writer.write_end_of_file()
        torch.save(ours.state_dict(), tmp_path / "ours")
    finally:
        runtimes.stop()
    assert len(written) == 2
    assert not any(runtime.memory.addresses.in_range(address) for address in written)
    for name in ("watched", "ours"):
        loaded = torch.load(tmp_path / name)
        assert all(torch.equal(loaded[key], value) for key, value in plain.state_dict().items())


def test_only_the_first_step_is_watched_while_everything_fits() -> None:
    modes = []

    class Watching(torch.optim.SGD):
        def step(self) -> None:
            modes.append(torch.utils._python_dispatch._get_current_dispatch_mode() is not None)
            super().step()

    runtime = runtimes.start(FakeClient(lease_budget=100), Observer(), adopt_everything=True)
    try:
        model = torch.nn.Linear(64, 64)
        optimizer = Watching(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            model(torch.randn(2, 64)).sum().backward()
            optimizer.step()
        buffer = optimizer.state[model.weight]["momentum_buffer"]
        assert manages(runtime, buffer) == [True]
    finally:
        runtimes.stop()
    assert modes == [True, False, False]
    assert runtime.client.acquired == []


def test_what_fits_follows_the_share() -> None:
    runtime = runtimes.start(FakeClient(lease_budget=100), Observer(), adopt_everything=True)
    try:
        model = torch.nn.Linear(64, 64)  # Its weight takes four chunks.
        assert runtime.memory.addresses.manages(model.weight)
        for slots, pressed, overflows in ((5, False, False), (4, True, False), (3, True, True)):
            runtime.client.slots, runtime.client.lease_budget = slots, slots - 1
            runtime.ledger.refresh()
            assert runtime.memory.pressure.exceeds_lease_budget() == pressed
            assert runtime.memory.pressure.overflows() == overflows
    finally:
        runtimes.stop()


def test_chunks_of_ended_tensors_go_back_under_pressure(runtime: Runtime) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.randn(2, 64))
    optimizer.step()
    assert Kind.GRADIENT not in runtime.client.kinds.values()
    assert runtime.client.in_use() == set()


def test_an_exception_in_forward_leaves_no_lease(runtime: Runtime) -> None:
    class Failing(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert runtime.client.in_use()
            raise ValueError("on purpose")

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)), Failing(64, 8))
    assert runtime.ledger.active
    with pytest.raises(ValueError, match="on purpose"):
        model(torch.randn(2, 64))
    assert runtime.client.in_use() == set()


def test_an_exception_in_step_leaves_no_lease_and_no_mode(runtime: Runtime) -> None:
    class Failing(torch.optim.SGD):
        def step(self) -> None:
            super().step()
            assert runtime.client.in_use()
            raise ValueError("on purpose")

    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
    optimizer = Failing(model.parameters(), lr=0.1)
    model(torch.randn(2, 32)).sum().backward()
    with pytest.raises(ValueError, match="on purpose"):
        optimizer.step()
    assert runtime.client.in_use() == set()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"amsgrad": True}])
def test_operations_on_lists_lease_one_index_at_a_time(
    options: dict[str, bool], runtime: Runtime
) -> None:
    torch.manual_seed(0)
    runtime.offloaded.allowed = False
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(20)))
    plain = pickle.loads(pickle.dumps(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    inputs = torch.randn(4, 32)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        runtime.client.acquired.clear()
        optimizer.step()
        assert max(len(places) for places, _ in runtime.client.acquired) <= 5
    runtimes.stop()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        plain(inputs).square().mean().backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_gradients_that_were_let_go_of_are_freed_before_the_forward_pass(runtime: Runtime) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def gradients() -> int:
        return list(runtime.client.kinds.values()).count(Kind.GRADIENT)

    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        model[0](torch.randn(2, 32))
        seen.append(gradients())
        model(torch.randn(2, 32)).sum().backward()
        optimizer.step()
        assert gradients() == 12
    assert seen == [0, 0, 0]
    model[0](torch.randn(2, 32))
    assert gradients() == 12  # The script still holds the gradients.


def test_leases_end_when_backward_ends(runtime: Runtime) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    during = []
    model[0].weight.register_hook(lambda _: during.append(len(runtime.client.in_use())))
    model(torch.randn(2, 64)).sum().backward()
    assert during[0] > 0
    assert runtime.client.in_use() == set()
