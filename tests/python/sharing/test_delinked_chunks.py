"""Layers that part have their chunks in common until one is written, and then what each wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harness import SCRIPTS, Cli
from memtide._daemon import inspection
from stepping_script import node_daemon

_SCRIPT = SCRIPTS / "delinking.py"
_SHARED = ("--share=model.blocks", "--delink-at-step=2")
_CHUNK_BYTES = 2 << 20
_OTHER_BLOCKS, _CHUNKS_OF_BLOCK = 5, 2
_PATIENCE_S = 300.0


def _usage_when(file: Path, sockets: Path, script: Any) -> inspection.Node:
    until = time.monotonic() + _PATIENCE_S
    while not file.exists():
        assert script.poll() is None and time.monotonic() < until, script.communicate()
        time.sleep(0.05)
    node = inspection.inspect(sockets)
    file.with_name(file.name + ".seen").touch()
    return node


def _read(*files: Path) -> list[Any]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_nothing_is_copied_before_the_first_write(cli: Cli, tmp_path: Path) -> None:
    plain, ours, waits = tmp_path / "plain", tmp_path / "ours", tmp_path / "waits"
    with node_daemon(tmp_path / "ssd", "--no-host-reserve", host_pool="96MiB") as sockets:
        script = cli.start_memtide(
            *("run", f"--chunk-size={_CHUNK_BYTES}", *_SHARED, _SCRIPT),
            MEMTIDE_SOCKET_DIR=sockets,
            RESULT=ours,
            WAITS=waits,
            OMP_NUM_THREADS=1,
        )
        before = _usage_when(Path(f"{waits}.shared"), sockets, script)
        after = _usage_when(Path(f"{waits}.parted"), sockets, script)
        out, err = script.communicate(timeout=_PATIENCE_S)
        assert script.returncode == 0, f"{out}\n{err}"
    for kind, rows in (("parameter", 1), ("optimizer_state", 2)):
        assert after.kinds[kind].allocated_bytes == before.kinds[kind].allocated_bytes, kind
        shared = after.kinds[kind].shared_bytes
        assert shared == rows * _OTHER_BLOCKS * _CHUNKS_OF_BLOCK * _CHUNK_BYTES, kind
    cli.python(_SCRIPT, BY_HAND=1, RESULT=plain, OMP_NUM_THREADS=1).check()
    one, other = _read(plain, ours)
    assert one == other


def test_states_of_all_layers_are_larger_than_host_memory(cli: Cli, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    cli.python(_SCRIPT, BY_HAND=1, RESULT=plain, OMP_NUM_THREADS=1).check()
    cli.memtide(
        *("run", "--host-pool=56MiB", "--ssd-pool=512MiB", f"--ssd-dir={tmp_path}"),
        *(f"--chunk-size={_CHUNK_BYTES}", *_SHARED, _SCRIPT),
        RESULT=ours,
        OMP_NUM_THREADS=1,
    ).check()
    one, other = _read(plain, ours)
    assert one == other
