"""Free memory is the limit where none is set, and nothing is managed before it is near."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_client import FakeClient
from harness import short_directory
from memtide._activations.budget import Budget
from memtide._daemon import free_memory, inspection
from memtide._daemon.free_memory import FreeMemory
from memtide._daemon.memory_budget import MemoryBudget
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes

_GIB = 2**30


class Node:
    """A daemon's socket, which this process holds, and the size by which its pool may grow."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.socket_dir, self.root = folder / "sockets", folder / "root"
        self.socket_dir.mkdir()
        self.pool_grows_bytes = 0
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(self.socket_dir / "fd.sock"))
        self._listening.listen()
        monkeypatch.setattr(inspection, "inspect", self._inspect)
        monkeypatch.setattr(free_memory, "_POOL_VALID_S", 0.0)
        self.write("proc/meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {9 << 20} kB")
        self.write("proc/self/cgroup", "0::/job")
        self.write(f"proc/{os.getpid()}/cgroup", "0::/job")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")

    def limit(self, limit_bytes: int, used_bytes: int) -> None:
        self.write("sys/fs/cgroup/job/memory.max", str(limit_bytes))
        self.write("sys/fs/cgroup/job/memory.current", str(used_bytes))

    def close(self) -> None:
        self._listening.close()

    def _inspect(self, _socket_dir: Path) -> SimpleNamespace:
        pools = [("host", self.pool_grows_bytes), ("ssd", 5 * _GIB)]
        return SimpleNamespace(pools=[SimpleNamespace(tier=t, free_bytes=n) for t, n in pools])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with short_directory() as folder:
        made = Node(folder, monkeypatch)
        yield made
        made.close()


def test_a_sixteenth_of_the_machine_and_the_pools_growth_are_left_free(node: Node) -> None:
    free = FreeMemory(node.socket_dir, 1, node.root)
    assert free.left_bytes() == 8 * _GIB
    node.pool_grows_bytes = 3 * _GIB
    assert free.left_bytes() == 5 * _GIB
    assert FreeMemory(node.socket_dir, 2, node.root).left_bytes() == 5 * _GIB // 2


def test_a_cgroups_limit_counts_where_it_is_tighter(node: Node) -> None:
    node.limit(4 * _GIB, _GIB)
    node.pool_grows_bytes = _GIB
    left_bytes = 3 * _GIB - _GIB // 4
    assert FreeMemory(node.socket_dir, 1, node.root).left_bytes() == left_bytes - _GIB
    # The pool of a daemon elsewhere grows there.
    node.write(f"proc/{os.getpid()}/cgroup", "0::/system.slice")
    assert FreeMemory(node.socket_dir, 1, node.root).left_bytes() == left_bytes


def test_what_is_overdrawn_is_nothing(node: Node) -> None:
    node.limit(_GIB, _GIB)
    assert FreeMemory(node.socket_dir, 1, node.root).left_bytes() == 0


@pytest.mark.parametrize("free_bytes", [0, 64 * _GIB])
def test_saved_tensors_are_managed_once_half_of_what_there_is_is_used(
    free_bytes: int,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(FreeMemory, "left_bytes", lambda _: free_bytes)
    client = FakeClient(lease_budget=16)
    budget = Budget(MemoryBudget(sharing_what_is_free=1), client, None, node.socket_dir)
    runtime = runtimes.start(client, Observer(), adopt_everything=True, budget=budget)
    try:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64) for _ in range(3)]
        model = torch.nn.Sequential(*(m for each in layers for m in (each, torch.nn.Tanh())))
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(16, 64)).sum().backward()
            optimizer.step()
        assert runtime.activations.hooks.are_set == (free_bytes == 0)
        assert bool(runtime.activations.moved_bytes) == (free_bytes == 0)
        assert (budget.as_json() is None) == (free_bytes > 0)
    finally:
        runtimes.stop()
    assert capsys.readouterr().err.count("leaves for chunks where memory is short") == (
        free_bytes == 0
    )


def test_hooks_of_the_script_stay_on_top(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeMemory, "left_bytes", lambda _: 0)
    client = FakeClient(lease_budget=16)
    budget = Budget(MemoryBudget(sharing_what_is_free=1), client, None, node.socket_dir)
    runtime = runtimes.start(client, Observer(), adopt_everything=True, budget=budget)
    try:
        layer = torch.nn.Linear(64, 64)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            layer(torch.ones(2, 64))
            assert not runtime.activations.hooks.are_set
        layer(torch.ones(2, 64))
        assert runtime.activations.hooks.are_set
    finally:
        runtimes.stop()
