"""The budget of a process: what it reads, and what it lets activations keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_client import CHUNK_BYTES, FakeClient
from memtide._activations import budget as budgets
from memtide._activations.budget import UNLIMITED_BYTES, Budget, Sampling
from memtide._daemon.memory_budget import MemoryBudget
from memtide._memory.device_oom import DeviceOomHandler
from memtide._telemetry import process_memory
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._util import heap
from memtide.errors import ResourceExhausted
from recording_gpu import RecordingGpu

_MIB = 2**20
_HOST = 1600 * _MIB  # Its slack is 200 MiB in the first iteration, then 100 MiB.
_SLOTS = 300  # The host pool's: less than 2 MiB, with the chunks of the fake client.
_DAEMON_PID = 1


class Machine:
    """The memory that processes have, as the budget reads it, and a clock."""

    def __init__(self) -> None:
        self.own_bytes = 300 * _MIB
        self.daemon = process_memory.Resident(10 * _MIB, 400 * _MIB)
        self.kept_bytes = 0
        self.has_no_room = False
        self.cgroup_leaves_bytes: int | None = None
        self.rise_bytes = 0  # The rise in use between the last reading and this one.
        self.freed_bytes = 0  # Bytes of the script's own memory that the allocator keeps.
        self.now_s = 100.0
        self.trims = 0

    def as_json(self) -> dict[str, Any]:
        return {"moved_bytes": 5}

    def read(self) -> process_memory.Usage:
        most_bytes, self.rise_bytes = self.own_bytes + self.rise_bytes, 0
        return process_memory.Usage(
            self.own_bytes, most_bytes, most_bytes + self.daemon.shared_bytes
        )

    def return_memory(self) -> bool:
        self.trims += 1
        self.own_bytes -= self.freed_bytes
        freed, self.freed_bytes = self.freed_bytes, 0
        return freed > 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(process_memory, "UsageReader", lambda: machine)
    monkeypatch.setattr(
        process_memory,
        "resident_of",
        lambda pid: machine.daemon if pid == _DAEMON_PID else process_memory.Resident(),
    )
    monkeypatch.setattr(budgets, "cgroup_leaves_bytes", lambda _: machine.cgroup_leaves_bytes)
    monkeypatch.setattr(budgets.time, "monotonic", lambda: machine.now_s)
    monkeypatch.setattr(heap, "return_freed_blocks", machine.return_memory)
    monkeypatch.setattr(heap, "trim", machine.return_memory)
    return machine


def make(machine: Machine, limits: MemoryBudget, client: FakeClient) -> Budget:
    budget = Budget(limits, client, _DAEMON_PID, Path())
    budget.watch(machine)
    return budget


def host_client(**changes: object) -> FakeClient:
    client = FakeClient()
    client.properties = replace(client.properties, host_slots=_SLOTS, **changes)
    return client


def later(machine: Machine) -> None:
    machine.now_s += 1.0


def test_without_a_limit_everything_may_be_kept(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(), host_client())
    assert budget.allowance_bytes() == UNLIMITED_BYTES
    assert budget.as_json() is None


def test_process_and_daemon_are_measured(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    assert budget.allowance_bytes() == _HOST - (200 + 300 + 10 + 400) * _MIB
    machine.own_bytes += 50 * _MIB
    machine.kept_bytes = 50 * _MIB
    later(machine)
    assert budget.allowance_bytes() == _HOST - (200 + 300 + 10 + 400) * _MIB, "they were kept"
    assert budget.as_json() == {
        "host_source": "--host-memory",
        "host_bytes": _HOST,
        "host_most_used_bytes": (350 + 10 + 400) * _MIB,
        "host_most_own_bytes": 300 * _MIB,
        "host_allowance_bytes": budget.allowance_bytes(),
        "activations": {"moved_bytes": 5},
    }


@pytest.mark.parametrize(("used_mib", "valid_s"), [(710, 0.05), (1450, 0.009), (1600, 0.005)])
def test_a_reading_is_valid_for_as_long_as_what_is_left(
    used_mib: int, valid_s: float, machine: Machine
) -> None:
    machine.own_bytes = (used_mib - 410) * _MIB
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    budget.sample()
    machine.own_bytes += _MIB
    machine.now_s += valid_s - 0.0005
    budget.sample()
    assert used(budget) == used_mib * _MIB
    machine.now_s += 0.001
    budget.sample()
    assert used(budget) == (used_mib + 1) * _MIB


def used(budget: Budget) -> int:
    described = budget.as_json()
    assert described is not None
    return int(described["host_most_used_bytes"])


def test_what_rises_and_falls_between_two_readings_counts(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    before = budget.allowance_bytes()
    machine.rise_bytes = 100 * _MIB
    later(machine)
    assert budget.allowance_bytes() == before - 100 * _MIB
    assert used(budget) == (300 + 10 + 400 + 100) * _MIB
    assert budget.take_most_host_bytes() == 400 * _MIB, "for the daemon's forecast"
    later(machine)
    assert budget.take_most_host_bytes() == 300 * _MIB


def test_a_peak_that_the_script_surely_needs_ends_the_run_after_the_iteration(
    machine: Machine,
) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client(chunk_bytes=2 * _MIB))
    budget.sample()
    for rise_mib in (_HOST // _MIB - 300 - 150 - 10, _HOST // _MIB - 300 - 150 - 9):
        machine.rise_bytes = rise_mib * _MIB
        later(machine)
        budget.sample()
        if rise_mib < 1141:
            budget.end_iteration()
    with pytest.raises(ResourceExhausted, match="own memory is 1.41 GiB .* the least is 1.56 GiB"):
        budget.end_iteration()


def test_moments_and_ends_of_iterations_are_read(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    observer = Sampling(budget, Observer())
    before = budget.allowance_bytes()
    machine.own_bytes += 100 * _MIB
    later(machine)
    observer.moment("backward", "Linear")
    machine.own_bytes -= 100 * _MIB
    later(machine)
    assert budget.allowance_bytes() == before - 100 * _MIB, "the peak was in backward"
    observer.end_iteration()
    later(machine)
    assert budget.allowance_bytes() == before - 100 * _MIB + 100 * _MIB, "half of the slack"


def test_the_next_observer_counts_what_is_kept(machine: Machine) -> None:
    class Counting(Observer):
        count: Callable[[], int] | None = None

        def count_kept_activations(self, count: Callable[[], int]) -> None:
            self.count = count

    counting = Counting()
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    Sampling(budget, counting).count_kept_activations(lambda: 7)
    assert counting.count is not None
    assert counting.count() == 7


def test_memory_that_the_allocator_keeps_goes_back_when_it_is_scarce(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    before = budget.allowance_bytes()
    assert machine.trims == 0, "there is plenty"
    machine.own_bytes += 400 * _MIB
    machine.freed_bytes = 400 * _MIB
    later(machine)
    assert budget.allowance_bytes() == before
    assert machine.trims == 1


def test_what_the_allocator_kept_is_no_need_of_the_script(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    before = budget.allowance_bytes()
    machine.own_bytes += 200 * _MIB
    machine.freed_bytes = 200 * _MIB
    later(machine)
    assert budget.allowance_bytes() == before - 200 * _MIB, "nothing is scarce yet"
    machine.own_bytes += 100 * _MIB
    machine.kept_bytes = 100 * _MIB
    later(machine)
    assert budget.allowance_bytes() == before


def test_what_the_script_needs_itself_ends_the_run_with_both_numbers(machine: Machine) -> None:
    client = host_client(chunk_bytes=2 * _MIB)  # A pool of 600 MiB, of which 150 MiB stay.
    budget = make(machine, MemoryBudget(host_bytes=_HOST, host_source="the limit of X"), client)
    machine.own_bytes = _HOST - 160 * _MIB
    machine.daemon = process_memory.Resident(10 * _MIB, 150 * _MIB)
    assert budget.allowance_bytes() == 0
    machine.own_bytes += _MIB
    later(machine)
    message = (
        r"the script's own memory is 1.41 GiB beside what memtide manages, and the limit of X is "
        r"1.56 GiB: .*150 MiB for the smallest host pool .*10.0 MiB for the daemon, the least is "
        r"1.56 GiB. Allow more with --host-memory"
    )
    with pytest.raises(ResourceExhausted, match=message):
        budget.allowance_bytes()


def test_a_cgroup_that_leaves_less_than_at_first_makes_the_budget_smaller(machine: Machine) -> None:
    limits = MemoryBudget(host_bytes=_HOST, host_source="the limit of X")
    budget = make(machine, limits, host_client())
    before = budget.allowance_bytes()
    for leaves, less_mib in ((_HOST - 160 * _MIB, 140), (_HOST + _MIB, 0), (None, 0)):
        machine.cgroup_leaves_bytes = leaves
        later(machine)
        # The slack is an 8th of the budget.
        assert budget.allowance_bytes() == before - less_mib * _MIB
    machine.cgroup_leaves_bytes = _MIB
    later(machine)
    with pytest.raises(ResourceExhausted, match="the limit of X is 1.00 MiB"):
        budget.sample()
    described = budget.as_json()
    assert described is not None
    assert described["host_bytes"] == _HOST, "as the run began"


def test_a_budget_of_a_flag_does_not_follow_the_cgroup(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client())
    before = budget.allowance_bytes()
    machine.cgroup_leaves_bytes = _MIB
    later(machine)
    assert budget.allowance_bytes() == before


@pytest.mark.parametrize("source", ["--host-memory", "the limit of X"])
def test_activations_for_which_chunks_have_no_room_end_the_run_before_the_kernel_does(
    source: str, machine: Machine
) -> None:
    limits = MemoryBudget(host_bytes=_HOST, host_source=source)
    budget = make(machine, limits, host_client(chunk_bytes=2 * _MIB))
    machine.kept_bytes = machine.own_bytes = _HOST + _HOST // 32 - 410 * _MIB
    budget.sample()
    machine.has_no_room = True
    later(machine)
    budget.sample()
    machine.kept_bytes += _MIB
    machine.own_bytes += _MIB
    later(machine)
    if source == "--host-memory":  # The kernel does not know it.
        budget.sample()
        return
    with pytest.raises(ResourceExhausted, match="chunks have no room .* with --ssd-pool"):
        budget.sample()


@pytest.mark.parametrize("pool_mib", [150, 151])
def test_activations_in_use_end_the_run_once_the_pool_cannot_shrink(
    pool_mib: int, machine: Machine
) -> None:
    limits = MemoryBudget(host_bytes=_HOST, host_source="the limit of X")
    budget = make(machine, limits, host_client(chunk_bytes=2 * _MIB))  # 150 MiB of the pool stay.
    machine.daemon = process_memory.Resident(10 * _MIB, pool_mib * _MIB)
    machine.own_bytes = _HOST + _HOST * 7 // 128 - (10 + pool_mib) * _MIB
    machine.kept_bytes = machine.own_bytes - 300 * _MIB
    budget.sample()
    machine.own_bytes += _MIB
    machine.kept_bytes += _MIB
    later(machine)
    if pool_mib > 150:
        budget.sample()
        return
    with pytest.raises(ResourceExhausted, match="pool is at its smallest, .* a smaller batch"):
        budget.sample()


def test_without_an_ssd_the_whole_pool_stays(machine: Machine) -> None:
    client = host_client(chunk_bytes=2 * _MIB, ssd_slots=0)
    budget = make(machine, MemoryBudget(host_bytes=_HOST, host_source="the limit of X"), client)
    machine.own_bytes = _HOST - 609 * _MIB
    with pytest.raises(ResourceExhausted, match="600 MiB for the smallest host pool"):
        budget.allowance_bytes()


def test_the_least_counts_the_pool_of_the_larger_limit(machine: Machine) -> None:
    client = host_client(chunk_bytes=2 * _MIB, ssd_slots=0)
    budget = make(machine, MemoryBudget(host_bytes=_HOST), client)
    machine.own_bytes = 1440 * _MIB
    least_mib = (1440 + 10 - 0.45 * (352 + 16)) / 0.55  # The pool has 45% beside torch and daemon.
    with pytest.raises(ResourceExhausted, match=f"the least is {least_mib / 1024:.2f} GiB"):
        budget.sample()


def test_activations_that_are_kept_are_not_the_scripts_own(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), host_client(chunk_bytes=2 * _MIB))
    machine.own_bytes, machine.kept_bytes = _HOST - 600 * _MIB, 500 * _MIB
    budget.sample()  # They can leave.


def emulated_client() -> FakeClient:
    """A node with an emulated device of 100 slots of 2 MiB."""
    client = host_client()
    client.properties = replace(client.properties, chunk_bytes=2 * _MIB, device_slots=100)
    client.slots = 100
    return client


def test_on_an_emulated_device_slots_and_kept_activations_share_the_limit(
    machine: Machine,
) -> None:
    client = emulated_client()
    budget = make(machine, MemoryBudget(device_bytes=480 * _MIB), client)
    machine.own_bytes = 10 * _HOST  # Host memory has no limit here.
    machine.kept_bytes = 40 * _MIB
    assert budget.allowance_bytes() == (480 - 60 - 200) * _MIB
    used = budget.as_json()
    assert used is not None
    assert used["device_most_used_bytes"] == (200 + 40) * _MIB


def test_an_emulated_device_is_no_host_memory(machine: Machine) -> None:
    budget = make(machine, MemoryBudget(host_bytes=_HOST), emulated_client())
    machine.daemon = process_memory.Resident(10 * _MIB, (400 + 200) * _MIB)
    machine.own_bytes, machine.kept_bytes = (300 + 70) * _MIB, 70 * _MIB
    assert budget.allowance_bytes() == UNLIMITED_BYTES, "activations are on the device"
    used = budget.as_json()
    assert used is not None
    assert used["host_most_used_bytes"] == (300 + 10 + 400) * _MIB


_DEVICE, _CONTEXTS = 1600 * _MIB, 64 * _MIB


@pytest.fixture
def gpu_budget(machine: Machine, cpu_as_gpu: RecordingGpu) -> Iterator[Budget]:
    """The budget of a script on a GPU of 3200 MiB, whose share is 9 chunks of 4 KiB."""
    client = FakeClient(handles_faults=False)
    client.slots = 9
    budget = make(machine, MemoryBudget(device_bytes=_DEVICE), client)
    cpu_as_gpu.total_bytes = 2 * _DEVICE
    cpu_as_gpu.allocated_bytes = 100 * _MIB
    cpu_as_gpu.free_bytes = 2 * _DEVICE - (100 * _MIB + _CONTEXTS + 9 * CHUNK_BYTES)
    yield budget


def test_on_a_gpu_torchs_allocator_says_what_is_used(
    gpu_budget: Budget, machine: Machine, cpu_as_gpu: RecordingGpu
) -> None:
    machine.kept_bytes = 30 * _MIB
    left = _DEVICE - 200 * _MIB - _CONTEXTS - 9 * CHUNK_BYTES
    # The pool began with 9 slots, too.
    assert gpu_budget.allowance_bytes() == left - 70 * _MIB
    cpu_as_gpu.allocated_bytes += 20 * _MIB
    later(machine)
    assert gpu_budget.allowance_bytes() == left - 90 * _MIB


def test_activations_that_a_gpu_keeps_are_no_host_memory(
    machine: Machine, cpu_as_gpu: RecordingGpu
) -> None:
    client = FakeClient(handles_faults=False)
    budget = make(machine, MemoryBudget(host_bytes=_HOST), client)
    machine.kept_bytes = 30 * _MIB
    budget.sample()
    used = budget.as_json()
    assert used is not None
    assert used["host_most_own_bytes"] == 300 * _MIB, "nothing is taken from it"


def test_before_the_script_uses_the_gpu_its_allocator_is_asked_for_nothing(
    gpu_budget: Budget, cpu_as_gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_used(_device: object) -> dict[str, object]:
        raise RuntimeError("CUDA is not initialized")

    monkeypatch.setattr(cpu_as_gpu, "memory_stats_as_nested_dict", not_used)
    gpu_budget.sample()
    assert gpu_budget.allocator_limit is not None
    gpu_budget.allocator_limit.limit_allocator()
    assert cpu_as_gpu.calls == []


def test_where_no_limit_is_set_a_gpus_free_memory_is_one(
    machine: Machine, cpu_as_gpu: RecordingGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(handles_faults=False)
    client.slots = 9
    budget = make(machine, MemoryBudget(sharing_what_is_free=2), client)
    opened: list[bool] = []
    machine.open_here = lambda: opened.append(True) or True  # type: ignore[attr-defined]
    cpu_as_gpu.total_bytes = _DEVICE
    cpu_as_gpu.allocated_bytes = 400 * _MIB
    cpu_as_gpu.free_bytes = _DEVICE - 400 * _MIB - 9 * CHUNK_BYTES
    budget.sample()
    budget.open_if_near()
    assert not opened
    assert budget.as_json() is None
    cpu_as_gpu.allocated_bytes = machine.kept_bytes = 700 * _MIB
    cpu_as_gpu.free_bytes = 600 * _MIB
    later(machine)
    budget.sample()
    budget.open_if_near()
    assert opened
    assert "700 MiB of the 0.98 GiB of GPU memory" in capsys.readouterr().err
    # Half of what is free is another process's, the slack an eighth, and 400 MiB may come again.
    left_bytes = (1000 * _MIB + 9 * CHUNK_BYTES) * 7 // 8 - 9 * CHUNK_BYTES - 400 * _MIB
    assert budget.allowance_bytes() == pytest.approx(left_bytes, abs=1)
    assert cpu_as_gpu.fraction == 1.0, "the device limits the allocator"


def test_a_gpu_that_is_not_used_yet_limits_nothing(
    machine: Machine, cpu_as_gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(handles_faults=False)
    budget = make(machine, MemoryBudget(sharing_what_is_free=1), client)
    with monkeypatch.context() as unused:
        unused.setattr(cpu_as_gpu, "memory_stats_as_nested_dict", lambda _device: {})
        assert budget.allowance_bytes() == UNLIMITED_BYTES
        assert cpu_as_gpu.calls == []
    cpu_as_gpu.total_bytes = cpu_as_gpu.free_bytes = _DEVICE
    machine.now_s += 0.01
    assert budget.allowance_bytes() < _DEVICE


def test_torchs_allocator_is_limited_to_what_the_share_leaves(
    gpu_budget: Budget, cpu_as_gpu: RecordingGpu
) -> None:
    runtime = runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    try:
        limit = gpu_budget.allocator_limit
        assert limit is not None
        share = DeviceOomHandler(runtime.memory, limit)
        gpu_budget.sample()
        beside = _DEVICE - _CONTEXTS
        assert cpu_as_gpu.fraction * 2 * _DEVICE == pytest.approx(beside - 9 * CHUNK_BYTES)
        gpu_budget._client.slots = 4
        share._limit_allocator()
        assert cpu_as_gpu.fraction * 2 * _DEVICE == pytest.approx(beside - 4 * CHUNK_BYTES)
        assert limit.left_on_device_bytes() == beside - 4 * CHUNK_BYTES - 100 * _MIB
    finally:
        runtimes.stop()
