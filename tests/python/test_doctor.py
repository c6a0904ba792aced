"""What `memtide doctor` says of a GPU that may or may not be usable."""

from __future__ import annotations

from pathlib import Path

import pytest
from memtide import doctor
from memtide.doctor import Verdict

DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build\nGCC version: 12\n"
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a driver, its device file and a daemon."""
    (tmp_path / "driver").write_text(DRIVER)
    (tmp_path / "uvm").touch()
    daemon = tmp_path / "memtided"
    daemon.write_text("#!/bin/sh\necho 'memtided 0.1.0 (CUDA 13.0)'\n")
    daemon.chmod(0o755)
    monkeypatch.setattr(doctor, "_NVIDIA_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(doctor, "_NVIDIA_UVM", tmp_path / "uvm")
    monkeypatch.setenv("MEMTIDED", str(daemon))
    return tmp_path


def test_a_usable_gpu_is_named_by_its_driver(node: Path) -> None:
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "580.65.06" in finding.found


def test_without_a_driver_nothing_is_wrong(node: Path) -> None:
    (node / "driver").unlink()
    finding = doctor._gpu()
    assert finding.verdict is Verdict.GOOD
    assert "emulated" in finding.found


def test_a_module_that_is_not_loaded_is_named(node: Path) -> None:
    (node / "uvm").unlink()
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "modprobe nvidia-uvm" in finding.remedy


def test_a_daemon_without_cuda_is_named(node: Path) -> None:
    (node / "memtided").write_text("#!/bin/sh\necho 'memtided 0.1.0 (no CUDA)'\n")
    finding = doctor._gpu()
    assert finding.verdict is Verdict.SLOW
    assert "CUDA_HOME" in finding.remedy
