"""Fixtures for lease dispatch over a fake client."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from lease_dispatched import ROOMY
from memtide._memory import device_oom
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.runtime import Runtime


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """A runtime as on a GPU; its parameter, or its file's LEASE_BUDGET, is the lease budget."""
    budget = getattr(request, "param", getattr(request.module, "LEASE_BUDGET", ROOMY))
    client = FakeClient(handles_faults=False, lease_budget=budget)
    yield runtimes.start(client, Observer(), adopt_everything=True)
    runtimes.stop()


@pytest.fixture
def compiler() -> Iterator[None]:
    """A test compiles anew, and expects all warnings that there are."""
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    torch._dynamo.reset()
    assert [str(each.message) for each in caught if each.category is UserWarning] == []


@pytest.fixture
def seen(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that lease dispatch sees."""
    names: list[str] = []
    original = LeaseDispatchMode.__torch_dispatch__

    def dispatch(mode: Any, func: Any, *args: Any) -> Any:
        names.append(str(func))
        return original(mode, func, *args)

    monkeypatch.setattr(LeaseDispatchMode, "__torch_dispatch__", dispatch)
    return names


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Memory statistics that a test sets, as if there were a GPU with 26 bytes free."""
    stats: dict[str, Any] = {}
    monkeypatch.setattr(device_oom, "gpu_module", lambda _type: torch.cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (26, 0))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _device: stats)
    return stats
