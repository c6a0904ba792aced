"""Chunks are evicted when a script runs out of device memory, and return later."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient, one_chunk_each
from lease_dispatched import stack
from memtide._memory.device_oom import DeviceOomHandler
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import MemtideError, ResourceExhausted
from recording_gpu import RecordingGpu

_SLOTS = 9


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    runtimes.stop()


class Script:
    """A script that trains one parameter; one of its operations may run out of device memory."""

    def __init__(
        self, runtime: Runtime, gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.client = runtime.client
        self.gpu = gpu
        self._short = 0
        self._acquire = runtime.client.acquire
        (self._parameter,) = one_chunk_each(1)
        self._parameter.requires_grad_(True)
        self._optimizer = torch.optim.SGD([self._parameter], lr=0.0)
        monkeypatch.setattr(runtime.client, "acquire", self._acquire_or_fail)

    @property
    def slots(self) -> int:
        return int(self.client.lease_budget) + 1

    def run_short(self) -> None:
        self._short = 1
        self._parameter.detach().neg()

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            self._optimizer.step()

    def _acquire_or_fail(self, *arguments: object) -> None:
        self._acquire(*arguments)
        if self._short:
            self._short -= 1
            self.client.release(arguments[0])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 KiB. GPU 0")


@pytest.fixture
def script(cpu_as_gpu: RecordingGpu, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(runtime, cpu_as_gpu, monkeypatch)


def test_another_error_of_what_is_tried_again_is_the_scripts(runtime: Runtime) -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(runtime.client.slots)
        raise RuntimeError("a mistake of the script")

    handler = DeviceOomHandler(runtime.memory)
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 KiB. GPU 0")
    with pytest.raises(RuntimeError, match="a mistake of the script"):
        handler.retry(short, fail)
    assert len(tries) == 1


def test_short_of_device_memory_chunks_give_way_and_it_is_tried_again(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)
    failures = iter([True, True])
    real = runtime.client.acquire

    def acquire(*arguments: object) -> None:
        real(*arguments)
        if next(failures, False):
            runtime.client.release(arguments[0])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 KiB. GPU 0")

    monkeypatch.setattr(runtime.client, "acquire", acquire)
    assert (parameter * 2)[7].item() == 0.0
    assert runtime.client.lease_budget == 9 - 2 - 2 - 1
    assert runtime.ledger.budget == runtime.client.lease_budget


def test_where_the_fewest_chunks_are_left_kept_activations_leave(runtime: Runtime) -> None:
    handler = DeviceOomHandler(runtime.memory)
    moves, tries = iter([True, True, False]), []
    handler.move_activations = lambda wanted_bytes: wanted_bytes == 8192 and next(moves)
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 KiB. GPU 0")

    def fail() -> None:
        tries.append(runtime.client.slots)
        raise short

    with pytest.raises(torch.OutOfMemoryError, match="the fewest that it needs"):
        handler.retry(short, fail)
    least = runtime.client.limits.min_slots
    assert tries[-2:] == [least, least]
    assert tries.count(least) == 3
    assert handler.was_short


def test_what_was_half_written_is_not_tried_again(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)

    def acquire(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(runtime.client, "acquire", acquire)
    with pytest.raises(torch.OutOfMemoryError):
        parameter.add_(1)
    assert runtime.client.lease_budget == 8


def test_a_device_that_is_too_small_at_last_says_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)

    def acquire(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(runtime.client, "acquire", acquire)
    with pytest.raises(torch.OutOfMemoryError, match="memtide keeps 4 chunks of 4.00 KiB"):
        parameter.neg()


class _CudaError(RuntimeError):
    """As torch.AcceleratorError of newer versions, which is no OutOfMemoryError either."""


# As CUDA's libraries put it, and torch passes it on.
_LIBRARY_ERRORS = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.27\nncclUnhandledCudaError: Call "
    "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
)


def failing_once(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, *errors: RuntimeError
) -> list[RuntimeError]:
    """The next operations on chunks fail with `errors`, those that are left of the list."""
    left = list(errors)
    real = runtime.client.acquire

    def acquire(*arguments: object) -> None:
        real(*arguments)
        if left:
            runtime.client.release(arguments[0])
            raise left.pop(0)

    monkeypatch.setattr(runtime.client, "acquire", acquire)
    return left


@pytest.mark.parametrize("text", _LIBRARY_ERRORS)
def test_a_library_that_is_short_of_memory_is_a_shortage_too(
    text: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)
    left = failing_once(runtime, monkeypatch, _CudaError(text))
    assert (parameter * 2)[7].item() == 0.0
    assert not left
    assert runtime.client.slots == runtime.client.limits.min_slots, "less than 512 MiB are there"


def test_other_errors_are_no_shortage(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    (parameter,) = one_chunk_each(1)
    others = (
        _CudaError("CUDA error: an illegal memory access was encountered"),
        _CudaError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        MemtideError("the device pool is out of memory"),
    )
    for error in others:
        failing_once(runtime, monkeypatch, error)
        with pytest.raises(type(error), match=str(error)[:12]):
            parameter.neg()
        assert runtime.client.lease_budget == 8


def test_an_operation_that_writes_is_not_repeated_for_a_library(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)
    ordinary = torch.zeros(1)
    failing_once(runtime, monkeypatch, _CudaError(_LIBRARY_ERRORS[0]))
    with pytest.raises(_CudaError):
        ordinary.add_(parameter[5])
    assert runtime.client.lease_budget == 8
    failing_once(runtime, monkeypatch, torch.OutOfMemoryError("CUDA out of memory."))
    ordinary.add_(parameter[5])
    assert runtime.client.lease_budget < 8, "torch's allocator fails before anything is launched"


@pytest.mark.parametrize("name", ["_pin_memory", "empty_like"])
def test_too_little_pinned_memory_is_no_shortage_of_the_device(
    name: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameter,) = one_chunk_each(1)
    operation = getattr(torch.ops.aten, name).default
    failing_once(runtime, monkeypatch, _CudaError("CUDA error: out of memory"))
    kwargs = {"pin_memory": True} if name == "empty_like" else {}
    with pytest.raises(_CudaError):
        stack()[0].__torch_dispatch__(operation, (), (parameter,), kwargs)
    assert runtime.client.lease_budget == 8


class _BigChunks:
    """The part of a ManagedMemory that a DeviceOomHandler uses, with 100 slots of 64 MiB."""

    chunk_bytes = 64 << 20
    holding = False
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.client = self.ledger = self.addresses = self
        self.properties = SimpleNamespace(device_slots=100)
        self.limits = SimpleNamespace(min_slots=4)
        self.slots = 100
        self.resizes = 0

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(slots=self.slots)

    def resize(self, share_bytes: int, _timeout_ms: int) -> None:
        self.slots = share_bytes // self.chunk_bytes
        self.resizes += 1

    def release_all(self) -> None:
        pass

    def refresh(self) -> None:
        pass


def test_a_library_is_given_512_mib_more_than_was_asked_and_they_stay_free(
    cpu_as_gpu: RecordingGpu,
) -> None:
    memory = _BigChunks()
    handler = DeviceOomHandler(memory)  # type: ignore[arg-type]
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0")
    handler.retry(error, lambda: None)
    assert memory.slots == 100 - 20
    handler.retry(RuntimeError(_LIBRARY_ERRORS[0]), lambda: None)
    assert memory.slots == 80 - 80 // 8, "an eighth is more than 512 MiB"
    memory.slots = handler._slots = 40
    handler.retry(RuntimeError(_LIBRARY_ERRORS[0]), lambda: None)
    assert memory.slots == 40 - 8
    handler.retry(error, lambda: None)
    assert memory.slots == 32 - 20 - 8, "also for torch, from then on"
    cpu_as_gpu.free_bytes = (20 + 8 + 3) * memory.addresses.chunk_bytes
    for _ in range(2):
        handler.end_iteration()
    assert memory.slots == 4 + 3


def test_less_than_a_chunk_of_free_memory_asks_the_daemon_for_nothing(
    cpu_as_gpu: RecordingGpu,
) -> None:
    memory = _BigChunks()
    handler = DeviceOomHandler(memory)  # type: ignore[arg-type]
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0")
    handler.retry(error, lambda: None)
    cpu_as_gpu.free_bytes = (10 + 1) * memory.addresses.chunk_bytes - 1
    for _ in range(4):
        handler.end_iteration()
    assert (memory.slots, memory.resizes) == (88, 1)


def test_what_other_jobs_have_taken_is_not_given_back_again(cpu_as_gpu: RecordingGpu) -> None:
    memory = _BigChunks()
    handler = DeviceOomHandler(memory)  # type: ignore[arg-type]
    memory.slots = 50
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0")
    handler.retry(error, lambda: None)
    assert memory.slots == 50 - 10


def test_chunks_return_to_what_two_iterations_leave_free(script: Script) -> None:
    script.run_short()
    assert script.slots == _SLOTS - 2
    script.gpu.free_bytes = (
        2 * CHUNK_BYTES + CHUNK_BYTES
    )  # The size of the failed allocation stays free.
    script.train(1)
    assert script.slots == _SLOTS - 2
    script.train(1)
    assert script.slots == _SLOTS - 1
    script.gpu.free_bytes = 100 * CHUNK_BYTES
    script.train(1)
    assert script.slots == _SLOTS, "never more than it began with"


def test_no_chunk_returns_to_memory_that_is_used(script: Script) -> None:
    script.run_short()
    script.gpu.free_bytes = 3 * CHUNK_BYTES - 1
    script.train(8)
    assert script.slots == _SLOTS - 2


def test_a_return_that_was_too_much_is_tried_again_later(script: Script) -> None:
    script.gpu.free_bytes = 100 * CHUNK_BYTES
    for patience in (2, 4, 8):
        script.run_short()
        script.train(patience - 1)
        assert script.slots == _SLOTS - 2
        script.train(1)
        assert script.slots == _SLOTS


def test_memory_that_another_job_has_now_is_left_to_it(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.run_short()
    script.gpu.free_bytes = 100 * CHUNK_BYTES

    def resize(_bytes: int, _timeout_ms: int) -> None:
        raise ResourceExhausted("the device pool has 0 B free")

    with monkeypatch.context() as patches:
        patches.setattr(script.client, "resize", resize)
        script.train(3)
    assert script.slots == _SLOTS - 2
    script.train(2)
    assert script.slots == _SLOTS


def test_a_budgets_limit_is_told_of_each_new_share_and_keeps_chunks_from_returning(
    script: Script, runtime: Runtime
) -> None:
    assert runtime._gpu is not None
    elastic = runtime._gpu.elastic
    shares: list[int] = []

    class Limit:
        left_bytes = CHUNK_BYTES

        def left_on_device_bytes(self) -> int:
            return self.left_bytes

        def limit_allocator(self) -> None:
            shares.append(script.slots)

    elastic._limit = limit = Limit()
    script.run_short()
    fewer = script.slots
    assert shares == [fewer]
    script.gpu.free_bytes = 100 * CHUNK_BYTES
    script.train(8)
    assert shares == [fewer], "the budget leaves no more than the slack"
    limit.left_bytes = 100 * CHUNK_BYTES
    script.train(8)
    assert shares == [fewer, _SLOTS]
