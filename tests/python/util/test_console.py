"""Text that memtide prints has colours on a terminal, unless NO_COLOR is set, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PACKAGE_PARENT

_RUN = ("run", "--device=none", "--host-pool=16MiB", "--ssd-pool=64MiB")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "empty.py"
    path.touch()
    return path


def _start(script: Path, stderr: int, **environment: str) -> subprocess.Popen[bytes]:
    changes = {"PYTHONPATH": str(PACKAGE_PARENT), "TERM": "xterm-256color", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "memtide", *_RUN, f"--ssd-dir={script.parent}", script],
        env={**os.environ, **changes},
        stderr=stderr,
    )


def _on_terminal(script: Path, **environment: str) -> str:
    """The text that `memtide run SCRIPT` prints where stderr is a terminal."""
    ours, its = os.openpty()
    running = _start(script, its, **environment)
    os.close(its)
    printed = b""
    while True:
        try:
            printed += os.read(ours, 4096)
        except OSError:  # The process has ended, and with it the terminal.
            break
    os.close(ours)
    assert running.wait() == 0
    return printed.decode()


def test_no_color_leaves_out_every_style(script: Path) -> None:
    plain = _on_terminal(script, NO_COLOR="1")
    assert "managed nothing" in plain
    assert "\x1b" not in plain
    coloured = _on_terminal(script, NO_COLOR="")
    assert "\x1b[33m" in coloured


def test_where_stderr_is_no_terminal_there_are_neither_colours_nor_progress(script: Path) -> None:
    _, printed = _start(script, subprocess.PIPE).communicate()
    assert b"managed nothing" in printed
    assert b"\x1b" not in printed
    assert b"\r" not in printed
