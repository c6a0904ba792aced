"""The streams that are named to the library, and when it must wait for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_client import FakeClient
from memtide._capi.client import Places, Properties
from memtide._memory.covered_streams import CoveredStreams, covered_streams
from memtide._memory.leases import LeaseLedger
from memtide._util import devices

_ADD = SimpleNamespace(namespace="aten")
_ALL_REDUCE = SimpleNamespace(namespace="c10d")


class _Client:
    def __init__(self, needs_streams: bool = True) -> None:
        self.properties = Properties(
            *(0,) * 8, False, dl_device=(12, 1), needs_streams=needs_streams
        )
        self.calls: list[Any] = []

    def cover_streams(self, streams: Iterable[int]) -> None:
        self.calls.append(list(streams))

    def cover_all_streams(self) -> None:
        self.calls.append("all")


class _Gpu:
    """Torch's module of a device, of which only the current stream is asked."""

    def __init__(self) -> None:
        self.stream = SimpleNamespace(stream_id=0, cuda_stream=0)

    def current_stream(self, device: int) -> Any:
        assert device == 1
        return self.stream


@pytest.fixture
def gpu() -> _Gpu:
    return _Gpu()


@pytest.fixture
def client() -> _Client:
    return _Client()


@pytest.fixture
def streams(client: Any, gpu: Any) -> CoveredStreams:
    return CoveredStreams(client, gpu)


def test_each_stream_is_named_once(streams: CoveredStreams, client: _Client, gpu: _Gpu) -> None:
    for stream in ((0, 0), (0, 0), (3, 0x7F00), (0, 0), (3, 0x7F00)):
        gpu.stream = SimpleNamespace(stream_id=stream[0], cuda_stream=stream[1])
        streams.see_stream()
    assert client.calls == [[0], [0x7F00]]


def test_a_stream_that_torch_did_not_make_may_end(
    streams: CoveredStreams, client: _Client, gpu: _Gpu
) -> None:
    gpu.stream = SimpleNamespace(stream_id=0x7F00, cuda_stream=0x7F00)
    streams.see_stream()
    streams.see_stream()
    assert client.calls == ["all"]


def test_a_collective_has_streams_of_its_own(streams: CoveredStreams, client: _Client) -> None:
    for operation in (_ADD, _ALL_REDUCE, _ADD):
        streams.see_operation(operation)
        streams.see_stream()
    assert client.calls == [[0], "all"]


def test_only_older_drivers_need_streams(gpu: Any) -> None:
    older: Any = _Client()
    newer: Any = _Client(needs_streams=False)
    end = devices.register("agpu", 12, gpu)
    try:
        assert covered_streams(older) is not None
        assert covered_streams(newer) is None
    finally:
        end()


def test_uses_name_their_stream_and_holds_any(streams: CoveredStreams, client: _Client) -> None:
    ledger = LeaseLedger(FakeClient(handles_faults=False, lease_budget=8))
    ledger.streams = streams
    none = Places(())
    ledger.begin_use(none, none)
    assert client.calls == [[0]]
    assert ledger.hold(set())
    assert client.calls == [[0], "all"]


def test_what_is_kept_for_a_script_may_be_used_on_any_stream(
    streams: CoveredStreams, client: _Client
) -> None:
    ledger = LeaseLedger(FakeClient(handles_faults=False, lease_budget=8))
    ledger.streams = streams
    ledger.keep(Places(()), Places(())).release()
    assert client.calls == ["all"]
