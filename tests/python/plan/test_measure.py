"""`memtide doctor --measure`: what it measures, and that it leaves nothing."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest
from harness import Cli
from memtide._plan_file import machine_file
from memtide_plan.measure import device, drive, host
from memtide_plan.measure.repeated import rate_of

MIB = 2**20


def test_a_rate_is_the_middle_of_its_trials_without_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    units = iter([1e9, 10.0, 30.0, 20.0])
    rate = rate_of(lambda: next(units), seconds=0.0)
    assert rate.per_s == 20.0
    assert rate.spread == pytest.approx(0.5)


def test_host_memory_is_copied_faster_than_an_optimizer_steps() -> None:
    assert host.copy_rate(0.1).per_s > 1e7
    assert host.optimizer_rate(0.1).per_s > 1e7


def test_a_machine_without_a_gpu_has_an_emulated_device() -> None:
    found = device.find()
    assert found.is_emulated
    assert 0 < found.memory_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rates = device.product_rates(found, 0.1)
    assert set(rates) == {"float32", "bfloat16"}
    link = device.link_rates(found, 0.1)
    assert min(link.to_device.per_s, link.from_device.per_s, link.both_ways.per_s) > 1e6


def test_a_drive_is_measured_with_a_bounded_file_that_is_gone(tmp_path: Path) -> None:
    measured = drive.measure(tmp_path / "ssd", 0.4)
    if isinstance(measured, str):
        assert "no direct I/O" in measured
        pytest.skip(measured)
    assert 0 < measured.written_bytes <= 2048 * MIB
    assert measured.read.per_s > 0
    assert measured.write.per_s > 0
    assert list((tmp_path / "ssd").iterdir()) == []


def test_the_rate_of_a_drive_has_the_time_of_its_flush_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def flush() -> None:
        now[0] += 2

    buffer = mmap.mmap(-1, mmap.PAGESIZE)
    done, rate = drive._for_a_time(lambda *_: 0, [buffer], 6, 1.0, flush)
    assert (done, rate.took_s, rate.per_s) == (6, 2.0, 6 * drive._BLOCK_BYTES / 2)


def test_a_full_drive_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("Usage", (), {"free": 100 * MIB})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert drive.measure(tmp_path, 1.0) == f"only 100 MiB are free in {tmp_path}"


def test_memory_without_direct_io_is_no_drive() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("this machine has no /dev/shm")
    measured = drive.measure(Path("/dev/shm"), 0.1)
    # From Linux 6.6 on, files in memory may be opened for direct I/O.
    assert not isinstance(measured, str) or "has no direct I/O" in measured


def test_a_measured_machine_is_the_one_that_plans_ask_for(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    done = cli.memtide(
        "doctor", "--measure", file, "--ssd-dir", tmp_path / "ssd", XDG_STATE_HOME=tmp_path
    ).check()
    machine = machine_file.load(file)
    for subject in ("copies of host memory", "AdamW's steps", "host to device", "drive"):
        assert subject in done.out
    assert f"written to {file}" in done.out
    # Its processor computes in host memory, and a plan has no pool of a device.
    assert machine.device.pool_bytes == 0
    assert machine.uncertainty >= 0.02
    assert not machine_file.load(file).device.flop_per_s.keys() - {"float32", "bfloat16"}
