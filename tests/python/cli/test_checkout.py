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
echo "INFO: Build completed" >&2
case "$*" in
  *bazel-bin) echo /built ;;
  *--check_up_to_date*) [[ ! -e $0.stale ]] ;;
  *) [[ ! -e $0.broken ]] ;;
esac
"""
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
        environment = root / "cache" / "venv"
        (environment / "bin").mkdir(parents=True)
        python = environment / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        wanted = hashlib.sha256((root / "tools" / "requirements.txt").read_bytes()).hexdigest()
        (environment / ".memtide-requirements").write_text(wanted + "\n", encoding="utf-8")

    def memtide(self, *arguments: str, cwd: Path | None = None) -> Outcome:
        """`tools/memtide ARGUMENTS`, called in `cwd`."""
        path = f"{self._root / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [self._root / "tools" / "memtide", *arguments],
            env={**os.environ, "PATH": path, "MEMTIDE_CACHE": str(self._root / "cache")},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


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
