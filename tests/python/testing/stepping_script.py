"""A node's daemon, and scripts that train until a test ends them, so that it can observe both."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import SCRIPTS, short_directory
from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import answers

# Trains until the file in its first argument exists, and prints each step's loss.
SCRIPT = SCRIPTS / "low_host_memory.py"
_PATIENCE_S = 120.0
_MOST_STEPS = 500


@contextlib.contextmanager
def node_daemon(
    ssd_dir: Path,
    *more: str,
    host_pool: str = "64MiB",
    ssd_pool: str = "1GiB",
    device: str = "none",
) -> Iterator[Path]:
    """The socket directory of a daemon with host memory, an SSD, `device`, and `more` flags."""
    with short_directory() as home:
        flags = [
            f"--socket-dir={home}",
            f"--ssd-dir={ssd_dir}",
            f"--ssd-pool={ssd_pool}",
            f"--host-pool={host_pool}",
            f"--device={device}",
            "--metrics-address=off",
            *more,
        ]
        with subprocess.Popen([find_daemon(), *flags], stderr=subprocess.DEVNULL) as daemon:
            try:
                while not answers(home):
                    assert daemon.poll() is None, "the daemon does not start"
                yield home
            finally:
                daemon.terminate()


class SteppingScript:
    """A script that trains; each line of its output is a step that a test can wait for."""

    def __init__(self, script: subprocess.Popen[str]) -> None:
        self.script = script
        self.losses: list[str] = []

    def make_step(self) -> None:
        assert self.script.stdout is not None
        line = self.script.stdout.readline()
        assert line, f"the script ended: {self.script.communicate()}"
        self.losses.append(line.strip())

    def train_until(self, seen: Callable[[], bool], what: str) -> None:
        for _ in range(_MOST_STEPS):
            self.make_step()
            if seen():
                return
        raise AssertionError(f"not seen in {_MOST_STEPS} steps: {what}")

    def end(self) -> str:
        """Waits for the script's end; returns its standard error."""
        assert self.script.stdout is not None
        # communicate() would miss lines that readline() has already buffered.
        self.losses += self.script.stdout.read().split()
        _, err = self.script.communicate(timeout=_PATIENCE_S)
        assert self.script.returncode == 0, err
        return err
