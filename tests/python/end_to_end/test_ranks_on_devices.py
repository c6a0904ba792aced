"""Ranks that share one daemon of several devices are on one each, and train as without memtide."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
_SCRIPT = SCRIPTS / "data_parallel.py"
_WRITE_SESSIONS = Path(__file__).resolve().parents[1] / "testing" / "write_sessions.py"
_POOL_MIB = 32

EnvironmentOf = Callable[[int], dict[str, str]]


@pytest.fixture
def environment_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> EnvironmentOf:
    """Makes fake GPUs, by their number; returns what scripts need for them in the environment."""

    def of(gpus: int) -> dict[str, str]:
        if gpus:
            request.getfixturevalue("gpu")
            cuda = f"{os.environ['MEMTIDE_FAKE_CUDA']},devices={gpus}"
            monkeypatch.setenv("MEMTIDE_FAKE_CUDA", cuda)
        return {"ON_GPU": "1"} if gpus else {}

    return of


@pytest.mark.parametrize(
    ("device", "gpus", "devices"),
    [("emulated:2", 0, [0, 1]), ("cuda", 2, [0, 1]), ("cuda:2,cuda:1,cuda:0", 3, [1, 2])],
    ids=["emulated", "GPUs", "GPUs in another order"],
)
def test_ranks_of_one_daemon_are_on_a_device_each(
    device: str,
    gpus: int,
    devices: list[int],
    environment_of: EnvironmentOf,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    more = environment_of(gpus)
    ours, stats, seen = (tmp_path / name for name in ("ours", "stats", "seen"))
    plain = reference_runs.result(_SCRIPT, ranks=2)
    run = [*_TORCHRUN, _SCRIPT]
    pool = f"--device-pool={_POOL_MIB}MiB"
    with node_daemon(tmp_path / "ssd", pool, host_pool="96MiB", device=device) as sockets:
        more |= {"MEMTIDE_SOCKET_DIR": str(sockets), "AT_END": f"{_WRITE_SESSIONS} {seen} 0"}
        flags = [f"--stats={stats}", "--chunk-size=2MiB"]
        done = cli.memtide("run", *flags, "torchrun", *run, RESULT=ours, **more).check()
    assert ours.read_bytes() == plain.read_bytes()
    assert "without memtide" not in done.err
    usage = json.loads(seen.read_text(encoding="utf-8"))
    sessions = [session for session in usage["sessions"] if int(session.get("job_id", 0))]
    assert sorted(int(session.get("device_number", 0)) for session in sessions) == devices
    # Each has all of its device.
    shares = {int(session["device_share_bytes"]) for session in sessions}
    assert shares == {_POOL_MIB << 20}
    moved = json.loads(stats.read_text(encoding="utf-8"))["moved_bytes"]
    assert moved["device_to_host_bytes"] > 6 << 20


def _shared_bytes(
    cli: Cli,
    folder: Path,
    script: list[str | Path],
    device: str,
    pools_mib: tuple[int, int],
    wanted_bytes: int,
    more: dict[str, str],
) -> int:
    """Trains with ranks on devices, in a device and a host pool, and asserts that the results are
    those of plain ranks. Returns the bytes that the ranks have in common in the end, as soon as
    these are `wanted_bytes`."""
    plain, ours, seen = (folder / name for name in ("plain", "ours", "seen"))
    run = [*_TORCHRUN, *script]
    cli.python("-m", "torch.distributed.run", *run, RESULT=plain, **more).check()
    device_mib, host_mib = pools_mib
    with node_daemon(
        folder / "ssd", f"--device-pool={device_mib}MiB", host_pool=f"{host_mib}MiB", device=device
    ) as sockets:
        at_end = f"{_WRITE_SESSIONS} {seen} {wanted_bytes}"
        more = {**more, "MEMTIDE_SOCKET_DIR": str(sockets), "AT_END": at_end}
        cli.memtide("run", "--chunk-size=2MiB", "torchrun", *run, RESULT=ours, **more).check()
    results = sorted(folder.glob("ours*"))
    assert results
    for result in results:
        assert result.read_bytes() == (folder / result.name.replace("ours", "plain")).read_bytes()
    return int(json.loads(seen.read_text(encoding="utf-8"))["shared_bytes"])


# The frozen layers have 12 MiB, which do not fit the device beside what is trained.
@pytest.mark.parametrize(
    ("device", "gpus"), [("emulated:2", 0), ("cuda", 2)], ids=["emulated", "GPUs"]
)
def test_ranks_on_devices_keep_what_is_frozen_once(
    device: str, gpus: int, environment_of: EnvironmentOf, cli: Cli, tmp_path: Path
) -> None:
    more = environment_of(gpus) | {"FROZEN": "1"}
    least = 10 << 20
    assert _shared_bytes(cli, tmp_path, [_SCRIPT], device, (20, 96), least, more) >= least


# The model has 14 MiB of chunks, and its moments twice that. The gradients are each rank's own.
_TRAINED_BYTES = 3 * 14 << 20
_POOLS_MIB = 40, 160


def test_ranks_on_gpus_keep_what_they_train_once(
    fake_device: dict[str, str], cli: Cli, tmp_path: Path
) -> None:
    script = [SCRIPTS / "data_parallel_on_device.py", "fakegpu"]
    shared = _shared_bytes(cli, tmp_path, script, "cuda", _POOLS_MIB, _TRAINED_BYTES, fake_device)
    assert shared == _TRAINED_BYTES


def test_ranks_on_emulated_devices_keep_what_they_train_once(cli: Cli, tmp_path: Path) -> None:
    script = [SCRIPTS / "data_parallel_on_device.py", "cpu"]
    shared = _shared_bytes(cli, tmp_path, script, "emulated:2", _POOLS_MIB, _TRAINED_BYTES, {})
    assert shared == _TRAINED_BYTES


def test_a_rank_on_a_device_with_a_wrong_gradient_is_named(cli: Cli, tmp_path: Path) -> None:
    script = [SCRIPTS / "data_parallel_on_device.py", "cpu"]
    with node_daemon(
        tmp_path / "ssd", "--device-pool=40MiB", host_pool="160MiB", device="emulated:2"
    ) as sockets:
        more = {"MEMTIDE_SOCKET_DIR": str(sockets), "RESULT": str(tmp_path / "ours")}
        run = ["run", "--chunk-size=2MiB", "torchrun", *_TORCHRUN, *script]
        equal = cli.memtide(*run, **more).check()
        altered = cli.memtide(*run, **more, FLIP_AT="3").check()
    assert "differ from those of rank 0" not in equal.err
    line = (
        "memtide: in rank 1, the values of 4.weight differ from those of rank 0 after step 4, and "
        "did not after step 2"
    )
    assert altered.err.count(line) == 1
