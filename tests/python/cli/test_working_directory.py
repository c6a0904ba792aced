"""The programs import nothing from the working directory, where another user may have put it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PACKAGE_PARENT, REPOSITORY, Cli

_PLANTED = "raise SystemExit('imported from the working directory')\n"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A directory with modules of the names that the programs import first."""
    folder = tmp_path / "planted"
    for name in ("memtide/__init__", "memtide/__main__", "gpu_check/__init__", "rich", "argparse"):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_PLANTED, encoding="utf-8")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folders of a tarball, with the programs of the tarball and of the package in bin/."""
    (tmp_path / "bin").mkdir()
    for name, program in {
        "debian": "debian/memtide.sh",
        "tarball": "tarball/memtide.sh",
        "gpu-check": "tarball/gpu-check.sh",
    }.items():
        shutil.copy(REPOSITORY / "deploy" / program, tmp_path / "bin" / name)
    (tmp_path / "python").symlink_to(PACKAGE_PARENT)
    (tmp_path / "check").symlink_to(REPOSITORY / "bench" / "gpu")
    (tmp_path / "VERSION").symlink_to(REPOSITORY / "VERSION")
    return tmp_path


@pytest.mark.parametrize("program", ["debian", "tarball", "gpu-check"])
def test_a_program_imports_nothing_from_where_it_is_called(
    program: str, home: Path, planted: Path
) -> None:
    done = subprocess.run(
        ["sh", home / "bin" / program, "--help"],
        cwd=planted,
        env={**os.environ, "MEMTIDE_PYTHON": sys.executable, "PYTHONPATH": str(PACKAGE_PARENT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_module_that_is_run_is_found_where_python_finds_it(
    safe: str, cli: Cli, planted: Path
) -> None:
    (planted / "argparse.py").unlink()  # memtide has imported the one of Python.
    (planted / "own.py").write_text("print('found')\n", encoding="utf-8")
    more = {"cwd": planted, "PYTHONSAFEPATH": safe}
    plain = cli.python("-m", "own", **more)
    ours = cli.memtide("run", "--quiet", "-m", "own", **more)
    assert (ours.status == 0, ours.out) == (plain.status == 0, plain.out)
    assert ours.out == ("" if safe else "found\n")
