"""One `memtide run` inside another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Cli, short_directory

_POOLS = ("--device=none", "--host-pool=16MiB", "--ssd-pool=64MiB")
_STARTS_ANOTHER = f"""
import subprocess, sys
run = [sys.executable, "-m", "memtide", "run", *{_POOLS!r}, *sys.argv[1:]]
raise SystemExit(subprocess.run(run).returncode)
"""
_INNER = "import sys; print('inner', sys.argv[1:]); sys.exit(7)"


@pytest.mark.parametrize(
    "again", [["memtide"], ["-m", "memtide"], ["/usr/bin/memtide"], ["tools/memtide"]]
)
def test_memtide_is_no_program_of_memtide_run(again: list[str], cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = cli.memtide("run", *_POOLS, *again, "run", "train.py", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert done.err == "memtide: 'memtide run' is there twice: leave the second one out\n"


def test_a_script_may_start_a_run_which_has_its_own_daemon(cli: Cli, tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.py", tmp_path / "inner.py"
    outer.write_text(_STARTS_ANOTHER, encoding="utf-8")
    inner.write_text(_INNER, encoding="utf-8")
    starts, daemon = tmp_path / "starts", tmp_path / "memtided"
    daemon.write_text(f'#!/bin/sh\necho "$*" >> {starts}\nexec {os.environ["MEMTIDED"]} "$@"\n')
    daemon.chmod(0o755)
    with short_directory() as runtime_dir:
        more = {"MEMTIDED": daemon, "XDG_RUNTIME_DIR": runtime_dir}
        done = cli.memtide("run", "--quiet", *_POOLS, outer, "--quiet", inner, "3", **more)
        assert list(runtime_dir.iterdir()) == []
    assert (done.status, done.out, done.err) == (7, "inner ['3']\n", "")
    assert len(starts.read_text(encoding="utf-8").splitlines()) == 2
