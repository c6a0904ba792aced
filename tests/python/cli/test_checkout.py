"""tools/memtide, the command line of a checkout, says what it sets up and builds, and nothing else.

A program that records its arguments takes the place of Bazel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import REPOSITORY, Outcome

_BAZEL = """#!/bin/bash
echo "$*" >> "$0.calls"
if [[ $* != shutdown ]]; then echo "INFO: Build completed" >&2; fi
case "$*" in
  *bazel-bin) echo "${0%/bin/bazel}/built" ;;
  *--check_up_to_date*) [[ ! -e $0.stale ]] ;;
  build*) if [[ -e $0.edit ]]; then touch "$(cat "$0.edit")"; fi; [[ ! -e $0.broken ]] ;;
esac
"""
# Variables that name an interpreter.
_ENVIRONMENTS = ("MEMTIDE_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX")
_PACKAGES = """#!/bin/bash
for word; do if [[ $word != -* ]]; then echo "$word installed"; fi; done
"""


class Checkout:
    """A checkout with the files that tools/memtide reads, on a machine that is set up."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.bazel = root / "bin" / "bazel"
        for name in ("memtide", "lib.sh", "setup", "requirements.txt"):
            (root / "tools").mkdir(exist_ok=True)
            shutil.copy(REPOSITORY / "tools" / name, root / "tools" / name)
        for name in ("pyclient", "VERSION"):
            (root / name).symlink_to(REPOSITORY / name)
        (root / "bin").mkdir()
        for program, text in ((self.bazel, _BAZEL), (root / "bin" / "dpkg-query", _PACKAGES)):
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        for program in ("daemon/memtided", "daemon/replay/memtide-replay", "client/libmemtide.so"):
            (root / "built" / program).parent.mkdir(parents=True, exist_ok=True)
            (root / "built" / program).touch(mode=0o755)
        self.source = root / "engine" / "engine.cc"
        self.source.parent.mkdir()
        self.source.touch()
        os.utime(self.source, (1_000_000_000, 1_000_000_000))
        environment = root / "cache" / "venv"
        (environment / "bin").mkdir(parents=True)
        python = environment / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        wanted = hashlib.sha256((root / "tools" / "requirements.txt").read_bytes()).hexdigest()
        (environment / ".memtide-requirements").write_text(wanted + "\n", encoding="utf-8")

    def memtide(
        self, *arguments: str, cwd: Path | None = None, command: Path | None = None, **env: str
    ) -> Outcome:
        """`tools/memtide ARGUMENTS`, called in `cwd`. `env`: variables beside the usual ones."""
        path = f"{self._root / 'bin'}:{os.environ['PATH']}"
        usual = {k: v for k, v in os.environ.items() if k not in _ENVIRONMENTS}
        own = {"PATH": path, "MEMTIDE_CACHE": str(self._root / "cache")}
        done = subprocess.run(
            [command or self._root / "tools" / "memtide", *arguments],
            env={**usual, **own, **env},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def environment(self, name: str, python: str) -> Path:
        """A virtual environment whose Python does this."""
        program = self._root / name / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
        program.chmod(0o755)
        return program.parents[1]

    def bazel_calls(self) -> list[str]:
        """The calls of Bazel since the last call of this."""
        calls = Path(f"{self.bazel}.calls")
        lines = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_checkout_with_nothing_to_do_adds_no_line(checkout: Checkout) -> None:
    done = checkout.memtide("--version").check()
    assert done.err == ""
    assert done.out.startswith("memtide ")
    assert done.out.count("\n") == 1


def test_nothing_is_imported_from_where_it_is_called(checkout: Checkout, tmp_path: Path) -> None:
    planted = tmp_path / "planted" / "memtide"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("raise SystemExit('planted')\n", encoding="utf-8")
    assert checkout.memtide("--version", cwd=planted.parent).check().out.startswith("memtide ")


def test_a_build_is_shown_on_stderr(checkout: Checkout) -> None:
    Path(f"{checkout.bazel}.stale").touch()
    done = checkout.memtide("--version").check()
    assert done.err == "INFO: Build completed\n"
    assert done.out.count("\n") == 1
    build = Path(f"{checkout.bazel}.calls").read_text(encoding="utf-8").splitlines()[1]
    assert "--show_progress" in build.split()


def test_a_build_that_fails_is_shown_and_ends_the_command(checkout: Checkout) -> None:
    for state in ("stale", "broken"):
        Path(f"{checkout.bazel}.{state}").touch()
    done = checkout.memtide("--version")
    assert (done.status, done.out) == (1, "")
    assert "INFO: Build completed" in done.err


def test_bazel_is_asked_again_when_a_source_is_newer(checkout: Checkout) -> None:
    checkout.memtide("--version").check()
    calls = checkout.bazel_calls()
    assert "--check_up_to_date" in calls[0]
    assert calls[-1] == "shutdown", "no server had been running"
    checkout.memtide("--version").check()
    assert checkout.bazel_calls() == []
    os.utime(checkout.source, (2_000_000_000, 2_000_000_000))
    checkout.memtide("--version").check()
    assert "--check_up_to_date" in checkout.bazel_calls()[0]


def test_a_source_that_changes_while_it_is_built_is_built_again(checkout: Checkout) -> None:
    Path(f"{checkout.bazel}.stale").touch()
    Path(f"{checkout.bazel}.edit").write_text(f"{checkout.source}\n", encoding="utf-8")
    checkout.memtide("--version").check()
    checkout.bazel_calls()
    checkout.memtide("--version").check()
    assert checkout.bazel_calls() != []


def test_a_link_to_it_works(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "tools" / "memtide")
    assert checkout.memtide("--version", command=link).check().out.startswith("memtide ")


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "MEMTIDE_PYTHON"])
def test_the_active_environment_runs_scripts(checkout: Checkout, variable: str) -> None:
    own = checkout.environment("own", f'echo own >&2; exec {sys.executable} "$@"')
    value = own / "bin" / "python" if variable == "MEMTIDE_PYTHON" else own
    done = checkout.memtide("--version", **{variable: str(value)}).check()
    assert done.err.splitlines()[-1] == "own"


def test_an_active_environment_without_torch_is_named(checkout: Checkout) -> None:
    bare = checkout.environment("bare", f'exec {sys.executable} -I -S "$@"')
    done = checkout.memtide("--version", VIRTUAL_ENV=str(bare)).check()
    assert done.err.startswith("memtide: the active environment lacks torch, rich; running with ")
    named = checkout.memtide("--version", MEMTIDE_PYTHON=str(bare / "bin" / "python"))
    assert named.status == 2 and "lacks torch, rich" in named.err
    missing = checkout.memtide("--version", MEMTIDE_PYTHON="/nowhere/python")
    assert missing.status == 2 and "lacks a Python that runs" in missing.err
