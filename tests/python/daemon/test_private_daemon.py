"""How a private daemon is ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memtide._daemon.private_daemon import PrivateDaemon
from memtide._daemon.scratch_directory import ScratchDirectory


class _Process:
    """Writes down what is done with a process."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("kill")

    def wait(self, _timeout_s: float | None = None) -> None:
        self.done.append("wait")


@pytest.mark.parametrize(("hurried", "done"), [(False, ["wait"]), (True, ["kill"])])
def test_after_an_interrupt_a_daemon_is_killed_and_not_awaited(
    hurried: bool, done: list[str], tmp_path: Path
) -> None:
    process, home = _Process(), ScratchDirectory(tmp_path)
    read_end, write_end = os.pipe()
    (home.path / "memtided.log").touch()
    daemon = PrivateDaemon(home.path, process, home.path, write_end, [home])  # type: ignore[arg-type]
    if hurried:
        daemon.hurry()
    daemon.stop()
    daemon.stop()
    assert process.done == done
    assert list(tmp_path.iterdir()) == []
    assert os.read(read_end, 1) == b""  # No write end is open.
    os.close(read_end)
