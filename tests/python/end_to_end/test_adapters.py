"""Scripts that train adapters over one frozen model keep the model once, and see their own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from memtide._daemon import inspection
from stepping_script import node_daemon

_SCRIPT = SCRIPTS / "adapters.py"
_CHUNK_BYTES = 2 << 20
_MODEL_BYTES = 16 * 512 * 512 * 4  # The weights of the frozen layers.
_PATIENCE_S = 300.0


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    with node_daemon(tmp_path / "ssd", "--no-host-reserve", host_pool="512MiB") as sockets:
        yield sockets


def _start(
    cli: Cli, sockets: Path | None, kind: str, count: int, folder: Path
) -> list[subprocess.Popen[str]]:
    folder.mkdir()
    scripts = []
    for number in range(count):
        arguments = [_SCRIPT, kind, number, count, folder]
        if sockets is None:
            scripts.append(cli.start_python(*arguments))
        elif kind == "offload":
            scripts.append(cli.start_python(*arguments, MEMTIDE_SOCKET_DIR=sockets))
        else:
            size = [] if kind == "sizes" else [f"--chunk-size={_CHUNK_BYTES}"]
            run = ["run", "--quiet", *size, *arguments]
            scripts.append(cli.start_memtide(*run, MEMTIDE_SOCKET_DIR=sockets))
        if kind == "sizes":
            _wait_for(folder / f"begins-{number}", scripts)
    return scripts


def _wait_for(file: Path, scripts: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not file.exists():
        ended = [script.communicate() for script in scripts if script.poll() is not None]
        assert not ended and time.monotonic() < until, ended
        time.sleep(0.05)


def _wait(scripts: list[subprocess.Popen[str]]) -> None:
    for script in scripts:
        out, err = script.communicate(timeout=_PATIENCE_S)
        assert script.returncode == 0, f"{out}\n{err}"


def _results(folder: Path, count: int) -> list[Any]:
    return [
        json.loads((folder / f"result{number}").read_text(encoding="utf-8"))
        for number in range(count)
    ]


def _usage_at_end(cli: Cli, sockets: Path, kind: str, count: int, folder: Path) -> inspection.Node:
    """The node's usage while all scripts have trained and none has ended."""
    scripts = _start(cli, sockets, kind, count, folder)
    for number in range(count):
        _wait_for(folder / f"trained-{number}", scripts)
    node = inspection.inspect(sockets, sessions=True)
    (folder / "ends").touch()
    _wait(scripts)
    return node


def _plain(cli: Cli, kind: str, count: int, folder: Path) -> list[Any]:
    scripts = _start(cli, None, kind, count, folder)
    (folder / "ends").touch()
    _wait(scripts)
    return _results(folder, count)


def test_four_scripts_keep_their_frozen_model_once(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    allocated, in_memory = [], []
    for count in (1, 4):
        node = _usage_at_end(cli, sockets, "frozen", count, tmp_path / f"ours{count}")
        parameters = node.kinds["parameter"]
        allocated.append(sum(usage.allocated_bytes for usage in node.kinds.values()))
        in_memory.append(parameters.host_bytes + parameters.ssd_bytes)
    for alone, together in (allocated, in_memory):
        # The bytes of a script beside the model: its adapters, their states, and the model's end.
        own = max(0, alone - _MODEL_BYTES)
        assert together <= 1.05 * (_MODEL_BYTES + 4 * own), (allocated, in_memory)
    assert node.kinds["parameter"].shared_bytes >= 3 * (_MODEL_BYTES - _CHUNK_BYTES)
    assert _results(tmp_path / "ours4", 4) == _plain(cli, "frozen", 4, tmp_path / "plain")
    assert not inspection.inspect(sockets, sessions=True).sessions
    assert inspection.inspect(sockets).pools[-1].free_bytes


def test_a_script_that_writes_into_its_model_is_alone_with_what_it_writes(
    cli: Cli, sockets: Path, tmp_path: Path
) -> None:
    node = _usage_at_end(cli, sockets, "writes", 2, tmp_path / "ours")
    assert node.kinds["parameter"].shared_bytes >= _MODEL_BYTES // 2
    ours = _results(tmp_path / "ours", 2)
    assert ours == _plain(cli, "writes", 2, tmp_path / "plain")
    assert ours[0][1] != ours[1][1]


def test_models_that_scripts_offload_are_shared_too(
    cli: Cli, sockets: Path, tmp_path: Path
) -> None:
    node = _usage_at_end(cli, sockets, "offload", 2, tmp_path / "ours")
    assert node.kinds["parameter"].shared_bytes >= _MODEL_BYTES - _CHUNK_BYTES
    assert _results(tmp_path / "ours", 2) == _plain(cli, "plain", 2, tmp_path / "plain")


def test_scripts_without_a_chunk_size_have_the_same(
    cli: Cli, sockets: Path, tmp_path: Path
) -> None:
    node = _usage_at_end(cli, sockets, "sizes", 2, tmp_path / "ours")
    sizes = [session["chunk_size_bytes"] for session in node.sessions]
    assert len(sizes) == 2 and len(set(sizes)) == 1, sizes


def test_a_script_alone_shares_nothing(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    node = _usage_at_end(cli, sockets, "frozen", 1, tmp_path / "ours")
    assert node.kinds["parameter"].shared_bytes == 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["frozen", "writes"])
def test_scripts_on_a_gpu_keep_their_frozen_model_once(cli: Cli, tmp_path: Path, kind: str) -> None:
    flags = ("--no-host-reserve", "--device-pool=32MiB")
    with node_daemon(tmp_path / "ssd", *flags, host_pool="512MiB", device="cuda") as sockets:
        node = _usage_at_end(cli, sockets, kind, 2, tmp_path / "ours")
    assert node.kinds["parameter"].device_bytes
    least = _MODEL_BYTES - _CHUNK_BYTES if kind == "frozen" else _MODEL_BYTES // 2
    assert node.kinds["parameter"].shared_bytes >= least
    assert _results(tmp_path / "ours", 2) == _plain(cli, kind, 2, tmp_path / "plain")
