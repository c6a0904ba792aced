"""`memtide doctor` says whether a GPU is usable, whether torch is, and what is missing if not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memtide._cli import doctor, status
from memtide._cli.doctor import Verdict
from memtide._daemon import inspection
from memtide._daemon.inspection import HostMemory
from memtide._torch_hooks.patching import patches

DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build\nGCC version: 12\n"
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: object) -> Callable[[str], None]:
    """Sets more settings of the fake CUDA, for a GPU that no daemon has met."""
    before = os.environ["MEMTIDE_FAKE_CUDA"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda more: monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"{before},{more}")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a driver, its device file and a daemon."""
    (tmp_path / "driver").write_text(DRIVER)
    (tmp_path / "uvm").touch()
    daemon = tmp_path / "memtided"
    daemon.write_text("#!/bin/sh\necho 'memtided 1.2.3 (CUDA)'\n")
    daemon.chmod(0o755)
    monkeypatch.setattr(doctor, "_NVIDIA_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(doctor, "_NVIDIA_UVM", tmp_path / "uvm")
    monkeypatch.setenv("MEMTIDED", str(daemon))
    return tmp_path


def test_a_usable_gpu_is_named_by_its_driver(node: Path) -> None:
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "580.65.06" in finding.state


def test_without_a_driver_nothing_is_wrong(node: Path) -> None:
    (node / "driver").unlink()
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "emulated" in finding.state


def test_a_module_that_is_not_loaded_is_named(node: Path) -> None:
    (node / "uvm").unlink()
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "modprobe nvidia-uvm" in finding.remedy


def test_a_daemon_without_cuda_is_named(node: Path) -> None:
    (node / "memtided").write_text("#!/bin/sh\necho 'memtided 1.2.3 (no CUDA)'\n")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "CUDA_HOME" in finding.remedy


@pytest.mark.usefixtures("node")
def test_the_gpus_are_listed(fake: Callable[[str], None]) -> None:
    fake("memory=1GiB,devices=2")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "0 (Fake GPU, 1 GiB, GPU-fa616b65" in finding.state
    assert "1 (Fake GPU, 1 GiB, GPU-fb616b65" in finding.state


@pytest.mark.usefixtures("node")
def test_a_gpu_for_one_process_is_named_with_the_remedy(fake: Callable[[str], None]) -> None:
    fake("compute_mode=exclusive")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert re.search(r"GPU-fa616b65-2d63-7564-[0-9a-f]{4}-[0-9a-f]{10}00\)$", finding.state)
    assert "nvidia-smi -c 0, or run under MPS, or --device none" in finding.remedy
    # A copy waits for the link, so that other processes of a busy machine do not slow it.
    fake("compute_mode=exclusive,mps=yes,pinned_mb_s=400")
    assert doctor._gpu().verdict is Verdict.GOOD


@pytest.mark.usefixtures("node")
def test_what_a_gpu_cannot_do_is_named_with_what_is_done_instead(
    fake: Callable[[str], None],
) -> None:
    fake("import=no")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "memory passes by descriptor: no, by legacy IPC: yes" in finding.state
    assert "legacy CUDA IPC is used instead" in finding.remedy


@pytest.mark.usefixtures("node")
def test_where_host_memory_is_coherent_none_is_said_to_be_pinned(
    fake: Callable[[str], None],
) -> None:
    fake("coherent=yes,pinned_mb_s=400")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "host memory is coherent with it, and not pinned" in finding.state


@pytest.mark.usefixtures("node", "gpu")
def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", "driver=too-old")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "memtide needs driver 525" in finding.remedy


def test_all_torch_hooks_are_there() -> None:
    finding = doctor._torch_hooks()
    count = len(patches.expected(patches.version_of(torch.__version__)))
    assert (finding.verdict, finding.state) == (Verdict.GOOD, f"{count} of {count}")


def test_a_missing_torch_hook_is_named_with_what_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp.GradScaler, "_unscale_grads_")
    finding = doctor._torch_hooks()
    assert finding.verdict is Verdict.SLOW
    assert "GradScaler._unscale_grads_: steps under a GradScaler are not" in finding.state


def test_a_torch_without_a_required_hook_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim.Optimizer, "_optimizer_step_code")
    finding = doctor._torch_hooks()
    assert finding.verdict is Verdict.BAD
    assert "Optimizer._optimizer_step_code: required" in finding.state


def test_a_torch_that_is_too_old_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    finding = doctor._torch_hooks()
    assert finding.verdict is Verdict.BAD
    assert finding.state == "torch 2.4.1 is too old"


def _answer(monkeypatch: pytest.MonkeyPatch, memory: HostMemory) -> None:
    node = replace(inspection.parse({}), host_memory=memory)
    monkeypatch.setattr(inspection, "inspect", lambda _where: node)


def test_memory_that_cannot_be_pinned_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _answer(monkeypatch, HostMemory(1 << 30, 3 << 30, 16 << 20))
    finding = doctor._pinned_memory()
    assert finding.verdict is Verdict.SLOW
    assert "1.00 GiB pinned" in finding.state
    assert "3.00 GiB not pinned, copied through staging buffers" in finding.state
    assert ".wslconfig" in finding.remedy
    _answer(monkeypatch, HostMemory(1 << 30, 0, 16 << 20))
    assert doctor._pinned_memory().verdict is Verdict.GOOD


def test_the_status_says_what_is_pinned_and_where() -> None:
    assert status.host_memory_line(HostMemory()) == ""
    line = status.host_memory_line(HostMemory(2 << 30, 0, 16 << 20, numa_node=0))
    assert line == "host memory: 2.00 GiB pinned, 16.0 MiB of staging buffers, on NUMA node 0"
    line = status.host_memory_line(HostMemory(2 << 30, 0, 16 << 20, coherent=True))
    assert line == "host memory: 2.00 GiB coherent with the GPU, 16.0 MiB of staging buffers"
    assert "the driver's" in status.host_memory_line(HostMemory(0, 1 << 30))
    assert inspection.parse({"host_memory": {"coherent": True}}).host_memory.coherent
    reply = {"host_memory": {"numa_node_by_device": {"1": 1, "0": 0}}}
    of_two_nodes = status.host_memory_line(inspection.parse(reply).host_memory)
    where = "of each job on the NUMA node of its device, 0 for device/0, 1 for device/1"
    assert of_two_nodes == f"host memory: {where}"


def test_the_status_says_how_stores_are_striped_over_several_directories() -> None:
    reply = {
        "ssd_directories": [
            {"path": "/fast", "bytes_per_second": str(3 << 30), "stripes": 3},
            {"path": "/slow", "stripes": 1},
        ]
    }
    directories = inspection.parse(reply).ssd_directories
    assert status.ssd_directory_lines(directories) == [
        "SSD directory /fast: 3 of 4 stripes, 3.00 GiB/s",
        "SSD directory /slow: 1 of 4 stripes, speed not measured",
    ]
    assert status.ssd_directory_lines(directories[:1]) == []


def test_the_status_says_what_was_written_and_what_waits() -> None:
    reply = {
        "ssd_directories": [
            {
                "path": "/a",
                "written_bytes": str(3 << 40),
                "written_last_day_bytes": str(2 << 30),
                "written_per_day_bytes": str(8 << 30),
                "is_awaited": True,
                "endurance_bytes": str(600 << 40),
                "life_years": 4.25,
            },
            {"path": "/b", "endurance_bytes": "1"},
            {"path": "/c"},
        ],
        "ssd_users": [
            {"uid": 1000, "written_last_day_bytes": str(1 << 30), "waiting_chunks": 3},
            {"uid": 0, "written_per_day_bytes": str(4 << 30), "waiting_chunks": 1}
            | {"is_awaited": True},
        ],
    }
    node = inspection.parse(reply)
    assert list(map(status.ssd_writes_line, node.ssd_directories)) == [
        "written to /a: 2.00 GiB in the last 24 hours of at most 8.00 GiB, 3.00 TiB in all; "
        "predicted life 4.2 years; evictions wait for this budget",
        "written to /b: 0 B in the last 24 hours, 0 B in all; no life predicted, as nothing was "
        "written",
        "written to /c: 0 B in the last 24 hours, 0 B in all; predicted life unknown "
        "(--ssd-endurance)",
    ]
    assert list(map(status.user_line, node.ssd_users)) == [
        "written to SSD by uid 1000: 1.00 GiB in the last 24 hours; 3 chunks wait for the budget "
        "of a drive",
        "written to SSD by uid 0: 0 B in the last 24 hours of at most 4.00 GiB; 1 chunks wait for "
        "a budget of the user or a group",
    ]


def test_one_numa_node_is_no_choice(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_NUMA_NODES", tmp_path / "online")
    (tmp_path / "online").write_text("0\n")
    assert doctor._numa().state == "one node"


def test_the_nodes_of_gpu_and_pool_are_said(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_NUMA_NODES", tmp_path / "online")
    (tmp_path / "online").write_text("0-1\n")
    _answer(monkeypatch, HostMemory())
    unknown = doctor._numa()
    assert unknown.verdict is Verdict.SLOW
    assert "numactl" in unknown.remedy
    (node / "memtided").write_text("#!/bin/sh\necho '0 (GPU, 80 GiB, GPU-1, NUMA node 1)'\n")
    planned = doctor._numa()
    assert planned.verdict is Verdict.GOOD
    assert "memtided takes the host memory of each job from its GPU's node" in planned.state
    _answer(monkeypatch, HostMemory(numa_node=1))
    finding = doctor._numa()
    assert finding.verdict is Verdict.GOOD
    assert "NUMA node 1" in finding.state
    assert "the host pool is on node 1" in finding.state
    _answer(monkeypatch, HostMemory(numa_node_by_device={0: 0, 1: 1}))
    finding = doctor._numa()
    assert finding.verdict is Verdict.GOOD
    assert "the host memory of each job is on the node of its GPU" in finding.state
