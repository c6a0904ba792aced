"""The reporter sends moments, uses and the process's own memory to the daemon."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from fake_client import FakeClient
from memtide._capi.client import Phase
from memtide._telemetry import daemon_reporter, process_memory
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import Unavailable
from recording_gpu import RecordingGpu
from torch import nn

_FORWARD, _BACKWARD = (Phase.FORWARD, "Linear"), (Phase.BACKWARD, "Linear")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def layers(count: int) -> nn.Sequential:
    """A model of `layers` whose weights fill a chunk each."""
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(count)))
    return copy.deepcopy(model)  # A copy has no path, and moments have the name of its class.


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, 32)).square().sum().backward()
    optimizer.step()


def test_the_moments_of_a_module_have_its_path(runtime: Runtime) -> None:
    blocks = nn.ModuleDict({"blocks": nn.Sequential(*(nn.Linear(32, 32) for _ in range(12)))})
    with torch.no_grad():
        blocks["blocks"](torch.randn(2, 32))
    assert runtime.client.reported == [(Phase.FORWARD, f"blocks.{at}") for at in range(12)]


def test_an_iteration_is_its_moments_in_order_and_its_end(runtime: Runtime) -> None:
    runtime.offloaded.allowed = False
    model = layers(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    train(model, optimizer)
    runtime.client.reported.clear()
    train(model, optimizer)
    reported = runtime.client.reported
    assert reported[:24] == [_FORWARD] * 12 + [_BACKWARD] * 12
    assert reported[24] == (Phase.STEP, "SGD")
    assert [entry and entry[0] for entry in reported[25:]] == [Phase.STEP] * (
        len(reported) - 26
    ) + [None]
    assert len(reported) >= 26 + 11  # A step's moments are its pieces, not its whole.


def test_the_next_observer_counts_activations() -> None:
    class Next(Observer):
        def count_kept_activations(self, count: Callable[[], int]) -> None:
            self.count = count

    client, counting = FakeClient(), Next()
    runtime = runtimes.start(client, counting, adopt_everything=True)
    runtime.observer.count_kept_activations(lambda: 17)
    runtimes.stop()
    assert counting.count() == 17


def test_a_moment_is_told_before_its_chunks_are_leased(runtime: Runtime) -> None:
    runtime.offloaded.allowed = False
    model = layers(12)
    order: list[str] = []
    acquire, moment = runtime.client.acquire, runtime.client.moment
    runtime.client.acquire = lambda *arguments: (order.append("lease"), acquire(*arguments))
    runtime.client.moment = lambda *arguments: (order.append("moment"), moment(*arguments))
    with torch.no_grad():
        model(torch.randn(2, 32))
    assert order == ["moment", "lease"] * 12
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    train(model, optimizer)
    order.clear()
    optimizer.step()
    assert order[0] == "moment"
    assert "moment" in order[2:]
    # At most two leases follow a moment: one of what is read and one of what is written.
    runs = "".join(word[0] for word in order).split("m")
    assert max(map(len, runs)) <= 2


def test_nothing_is_told_while_everything_fits(runtime: Runtime) -> None:
    model = layers(1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not runtime.ledger.active
    assert runtime.client.reported == []


def test_a_script_that_never_steps_reports_one_long_iteration(runtime: Runtime) -> None:
    model = layers(12).eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(2, 32))
    assert runtime.client.reported == [_FORWARD] * 36


def test_two_models_in_turn_are_iterations_in_turn(runtime: Runtime) -> None:
    models = [layers(7), layers(9)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, foreach=False) for m in models]
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer)
    reported = runtime.client.reported
    ends = [index for index, entry in enumerate(reported) if entry is None]
    starts = [0, *(end + 1 for end in ends)]
    forward = [reported[s:e].count(_FORWARD) for s, e in zip(starts, ends, strict=False)]
    assert forward == [7, 9, 7, 9]


def test_a_step_in_groups_has_a_moment_for_each_where_no_mode_sees_its_operations() -> None:
    runtime = runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    runtime.offloaded.allowed = False
    try:
        model = layers(12)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        train(model, optimizer)
        steps = [entry for entry in runtime.client.reported if entry and entry[0] == Phase.STEP]
    finally:
        runtimes.stop()
    assert steps[0] == (Phase.STEP, "SGD")
    assert len(steps) > 2
    assert set(steps[1:]) == {(Phase.STEP, "_multi_tensor_sgd")}


def test_reports_that_fail_change_nothing(runtime: Runtime) -> None:
    def fail(*_arguments: object) -> None:
        raise Unavailable("the daemon is gone")

    runtime.client.moment = runtime.client.end_iteration = fail
    model = layers(12)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_observer_behind_sees_everything() -> None:
    class Watching(Observer):
        sampling = True
        seen: list[str] = []

        def moment(self, phase: str, name: str) -> None:
            self.seen.append(phase)

        def end_iteration(self) -> None:
            self.seen.append("end")

    watching = Watching()
    runtimes.start(FakeClient(), watching, adopt_everything=True)
    try:
        model = layers(1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finally:
        runtimes.stop()
    assert watching.seen == ["forward", "backward", "step", "end"]


def test_own_host_memory_is_read_rarely(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    monkeypatch.setattr(process_memory, "host_bytes", lambda: reads.append(1) or 7 * len(reads))
    clock_s = 100.0
    monkeypatch.setattr(daemon_reporter.time, "monotonic", lambda: clock_s)
    model = layers(12)
    with torch.no_grad():
        model(torch.randn(2, 32))
        assert len(reads) == 1
        clock_s += 0.02
        model(torch.randn(2, 32))
    assert len(reads) == 2
    assert [host for _, host in runtime.client.own_bytes] == [7] * 12 + [14] * 12


def test_own_device_memory_is_what_torch_allocated_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeClient(handles_faults=False)
    stats = {"allocated_bytes": {"all": {"current": 4096}}}
    gpus: list[int] = []
    monkeypatch.setattr(
        torch.cuda, "memory_stats_as_nested_dict", lambda gpu: gpus.append(gpu) or stats
    )
    client.properties = replace(client.properties, dl_device=(2, 1))
    clock_s = 100.0
    monkeypatch.setattr(daemon_reporter.time, "monotonic", lambda: clock_s)
    ledger = runtimes.LeaseLedger(client)
    reporter = daemon_reporter.Reporter(client, ledger, Observer())
    reporter.moment("forward", "Linear")
    stats.clear()  # As before the first use of CUDA.
    clock_s += 0.02
    reporter.moment("forward", "Linear")
    assert [device for device, _ in client.own_bytes] == [4096, 0]
    assert gpus == [1, 1]


def test_own_device_memory_is_read_rarely(
    cpu_as_gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 100.0
    monkeypatch.setattr(daemon_reporter.time, "monotonic", lambda: clock_s)
    client = FakeClient(handles_faults=False)
    reporter = daemon_reporter.Reporter(client, runtimes.LeaseLedger(client), Observer())
    for cpu_as_gpu.allocated_bytes in (4096, 8192):
        for _ in range(3):
            reporter.moment("forward", "Linear")
            clock_s += 0.003
        clock_s += 0.01
    assert [device for device, _ in client.own_bytes] == [4096] * 3 + [8192] * 3
    assert cpu_as_gpu.calls == ["memory_stats_as_nested_dict"] * 2


def test_an_allocator_that_counts_nothing_does_not_end_the_run(
    cpu_as_gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: object) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(cpu_as_gpu, "memory_stats_as_nested_dict", refuse)
    runtime = runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    try:
        train(model := layers(12), torch.optim.SGD(model.parameters(), lr=0.1))
        assert len(runtime.client.own_bytes) > 12
        assert {device for device, _ in runtime.client.own_bytes} == {0}
    finally:
        runtimes.stop()


def test_host_bytes_are_what_the_kernel_calls_anonymous() -> None:
    before = process_memory.host_bytes()
    held = bytearray(os.urandom(1)) * (64 << 20)
    grown = process_memory.host_bytes() - before
    assert abs(grown - len(held)) < 4 << 20
