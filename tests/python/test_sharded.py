"""FSDP (`fully_shard`) under `memtide run torchrun`: each rank's parts are in chunks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from memtide import sharded

_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
_SCRIPT = SCRIPTS / "fully_sharded.py"


def _plain(cli: Cli, folder: Path, kind: str) -> Path:
    """The plain script's result."""
    result = folder / "plain"
    run = ["-m", "torch.distributed.run", *_TORCHRUN, _SCRIPT, kind]
    cli.python(*run, RESULT=result).check()
    return result


def _train(cli: Cli, folder: Path, kind: str, *flags: str, **more: object) -> tuple[Path, Any]:
    """Trains in a third of what the ranks need together; its result, and what --stats says."""
    result, stats = folder / "ours", folder / "stats"
    pools = ["--host-pool=48MiB", "--ssd-pool=1GiB", f"--ssd-dir={folder / 'ssd'}"]
    run = ["torchrun", *_TORCHRUN, _SCRIPT, kind]
    cli.memtide(
        "run", *pools, "--chunk-size=2MiB", f"--stats={stats}", *flags, *run, RESULT=result, **more
    ).check()
    return result, json.loads(stats.read_text(encoding="utf-8"))


def _losses(result: Path) -> list[float]:
    return [float.fromhex(loss) for loss in json.loads(result.read_text())["losses"]]


@pytest.mark.parametrize(("kind", "rel"), [("whole", 1e-5), ("half", 0.01), ("meta", 1e-5)])
def test_parts_in_chunks_give_the_same(kind: str, rel: float, cli: Cli, tmp_path: Path) -> None:
    plain = _plain(cli, tmp_path, kind)
    result, told = _train(cli, tmp_path, kind, "--exact")
    assert result.read_bytes() == plain.read_bytes()
    for states in ("parameter", "gradient", "optimizer_state"):
        assert told["kinds"][states]["allocated_bytes"] > 8 << 20
    assert told["moved_bytes"]["ssd_read_bytes"] > told["iterations"] << 20
    assert told["daemon_steps"] == 0
    result, told = _train(cli, tmp_path, kind)
    assert _losses(result) == pytest.approx(_losses(plain), rel=rel)
    assert told["daemon_steps"] >= 4


def test_a_torch_that_keeps_parts_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(FSDPParam=type("FSDPParam", (), {"reset_sharded_param": None}))
    monkeypatch.setitem(sys.modules, sharded.PARAMETER_MODULE, other)
    monkeypatch.setitem(sys.modules, sharded.GROUP_MODULE, SimpleNamespace())
    wrapped: list[object] = []
    sharded.install(None, None, lambda *which: wrapped.append(which))
    assert wrapped == []


@pytest.mark.usefixtures("gpu")
def test_parts_are_on_a_gpu_each(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _plain(cli, tmp_path, "steps")
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"{os.environ['MEMTIDE_FAKE_CUDA']},devices=2")
    flags = ["--device-pool=20MiB", "--exact"]
    result, told = _train(cli, tmp_path, "steps", *flags, ON_GPU="1")
    assert result.read_bytes() == plain.read_bytes()
    assert told["client"]["faults"] == 0
    assert told["moved_bytes"]["device_to_host_bytes"] > told["iterations"] << 20
