"""Leases of collectives that are launched, or that end, after their call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_client import FakeClient, one_chunk_each
from memtide._capi.client import Access, Places
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.on_gpu.gpu_collectives import GpuCollectives
from memtide._torch_hooks.patching.patch_table import PATCHES
from memtide._torch_hooks.runtime import Runtime
from memtide.errors import ResourceExhausted


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(handles_faults=False), Observer(), adopt_everything=True)
    runtimes.stop()


class Work:
    """A collective that is complete once it is awaited, or made so."""

    def __init__(self) -> None:
        self.complete = False

    def is_completed(self) -> bool:
        return self.complete

    def wait(self) -> None:
        self.complete = True


class Backend:
    def __init__(self, name: str) -> None:
        self.name = lambda: name


def _replacement(
    name: str, collectives: GpuCollectives, original: Callable[..., Any]
) -> Callable[..., Any]:
    """The table's replacement of a method of ProcessGroup that begins or ends a group."""
    context: Any = SimpleNamespace(collectives=collectives)
    make = next(patch for patch in PATCHES if patch.name == name).make(context)
    assert make is not None
    return make(original)


class Group:
    """A process group whose methods are as GpuCollectives replaces them."""

    def __init__(self, collectives: GpuCollectives, backend: str) -> None:
        self._backend = Backend(backend)
        self._own = {
            name: collectives.leasing(name, lambda _group, *_arguments: Work())
            for name in ("allreduce", "allgather", "send", "recv")
        }
        self.start = _replacement("_start_coalescing", collectives, lambda *_: None)
        self.end = _replacement("_end_coalescing", collectives, lambda *_: Work())

    def _get_backend(self, _device: torch.device) -> Backend:
        return self._backend

    def begin(self, name: str, *arguments: Any) -> Work:
        work: Work = self._own[name](self, *arguments)
        return work


@pytest.fixture
def collectives(runtime: Runtime) -> GpuCollectives:
    assert isinstance(runtime._device.collectives, GpuCollectives)
    return runtime._device.collectives


@pytest.fixture
def threads(collectives: GpuCollectives) -> Group:
    return Group(collectives, "gloo")


@pytest.fixture
def streams(collectives: GpuCollectives) -> Group:
    return Group(collectives, "nccl")


def places(runtime: Runtime, *tensors: torch.Tensor) -> set[int]:
    return {place for tensor in tensors for place in runtime.memory.addresses.span_places(tensor)}


def test_a_backends_own_threads_have_leases_until_the_collective_is_complete(
    runtime: Runtime, collectives: GpuCollectives, threads: Group
) -> None:
    output, source = one_chunk_each(2)
    runtime.client.acquired.clear()
    work = threads.begin("allgather", [[output]], [source])
    assert runtime.client.in_use() == places(runtime, output, source)
    assert runtime.client.acquired == [
        (tuple(places(runtime, output)), Access.WRITE),
        (tuple(places(runtime, source)), Access.READ),
    ]
    runtime.ledger.release_all()
    collectives.settle()
    assert runtime.client.in_use() == places(runtime, output, source)
    work.complete = True
    collectives.settle()
    assert runtime.client.in_use() == set()


def test_a_send_only_reads(runtime: Runtime, threads: Group) -> None:
    (parameter,) = one_chunk_each(1)
    runtime.client.acquired.clear()
    threads.begin("send", [parameter], 1, 0)
    assert [access for _, access in runtime.client.acquired] == [Access.READ]


def test_kernels_on_streams_need_no_lease_after_their_launch(
    runtime: Runtime, streams: Group
) -> None:
    (parameter,) = one_chunk_each(1)
    streams.begin("allreduce", [parameter])
    assert runtime.client.in_use() == set()


def test_what_is_coalesced_has_leases_until_its_group_ends(
    runtime: Runtime, streams: Group
) -> None:
    sent, received, other = one_chunk_each(3)
    streams.start(streams, torch.device("cpu"))
    streams.begin("send", [sent], 1, 0)
    streams.begin("recv", [received], 1, 0)
    other.neg()
    assert runtime.client.in_use() == places(runtime, sent, received)
    streams.end(streams, torch.device("cpu"))
    assert runtime.client.in_use() == set()
    streams.begin("send", [sent], 1, 0)
    assert runtime.client.in_use() == set()


def test_a_group_of_a_backend_with_threads_has_leases_until_it_is_complete(
    runtime: Runtime, collectives: GpuCollectives, threads: Group
) -> None:
    (parameter,) = one_chunk_each(1)
    threads.start(threads)
    threads.begin("allreduce", [parameter])
    work = threads.end(threads)
    assert runtime.client.in_use() == places(runtime, parameter)
    work.complete = True
    collectives.settle()
    assert runtime.client.in_use() == set()


def test_a_group_that_an_exception_left_open_ends_before_the_next_step(
    runtime: Runtime, streams: Group
) -> None:
    first, second = one_chunk_each(2)
    streams.start(streams)
    streams.begin("recv", [first], 1, 0)
    streams.start(streams)
    streams.begin("recv", [second], 1, 0)
    assert runtime.client.in_use() == places(runtime, second)
    torch.optim.SGD([first], lr=0.1).step()
    assert runtime.client.in_use() == set()


def test_a_collective_that_fails_holds_nothing(
    runtime: Runtime, collectives: GpuCollectives, threads: Group
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a peer is gone")

    (parameter,) = one_chunk_each(1)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        collectives.leasing("allreduce", fail)(threads, [parameter])
    threads.start(threads)
    threads.begin("allreduce", [parameter])
    with pytest.raises(RuntimeError, match="a peer is gone"):
        collectives.ending_groups(fail)(threads)
    assert runtime.client.in_use() == set()


def test_an_operation_without_room_waits_for_the_collective_that_began_first(
    runtime: Runtime, threads: Group
) -> None:
    parameters = one_chunk_each(12)
    works = [threads.begin("allreduce", [p]) for p in parameters[:8]]
    assert not any(work.complete for work in works)
    assert torch.stack(parameters[8:11]).shape[0] == 3
    assert [work.complete for work in works] == [True] * 3 + [False] * 5
    threads.begin("allreduce", [parameters[11]])
    assert parameters[4].neg()[0].item() == -4.0, "it is leased already, so it waits for nothing"
    assert [work.complete for work in works] == [True] * 3 + [False] * 5


def test_nobody_waits_for_a_receive_that_may_need_a_later_send(
    runtime: Runtime, threads: Group
) -> None:
    parameters = one_chunk_each(9)
    works = [threads.begin("recv", [p], 1, 0) for p in parameters[:8]]
    with pytest.raises(ResourceExhausted, match="1 chunks at once, beside 8 that sends and receiv"):
        runtime.ledger.keep(Places(()), Places(places(runtime, parameters[8])))
    with pytest.raises(ResourceExhausted, match="touches 1 chunks"):
        parameters[8].neg()
    assert not any(work.complete for work in works)
    works[2].complete = True
    assert parameters[8].neg()[0].item() == -8.0


class Racing(list[Any]):
    """A list to which another thread begins to add each time it has been walked over. The walk ends
    once that is done, or has to wait."""

    def __init__(self, items: list[Any], begin: Callable[[], None], added: threading.Event) -> None:
        super().__init__(items)
        self.threads: list[threading.Thread] = []
        self._begin = begin
        self._added = added

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self._added.clear()
        self.threads.append(threading.Thread(target=self._begin))
        self.threads[-1].start()
        self._added.wait()


class Announcing:
    """A lock that says when a thread has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock = threading.Lock()
        self._waits = waits

    def __enter__(self) -> None:
        if self._lock.locked():
            self._waits.set()
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


def test_a_collective_that_begins_while_others_are_dropped_keeps_its_leases(
    collectives: GpuCollectives, threads: Group
) -> None:
    first, second = one_chunk_each(2)
    threads.begin("allreduce", [first]).complete = True
    going_on = threading.Event()

    def begin() -> None:
        threads.begin("allreduce", [second])
        going_on.set()

    collectives._lock = Announcing(going_on)  # type: ignore[assignment]
    racing = collectives._pending = Racing(collectives._pending, begin, going_on)
    collectives._drop({id(list.__getitem__(racing, 0))})
    for thread in racing.threads:
        thread.join()
    assert len(collectives._pending) == len(racing.threads) > 0
