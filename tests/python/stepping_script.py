"""A node's daemon, and scripts that go on training while a test looks at it, until the test lets
them end."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import SCRIPTS, short_directory
from memtide.daemon import answers
from memtide.locate import find_daemon

# Trains until the file that it is given is there, and prints each step's loss.
SCRIPT = SCRIPTS / "squeezed.py"
_PATIENCE_S = 120.0
_MOST_STEPS = 500


@contextlib.contextmanager
def node_daemon(ssd_dir: Path, *more: str, host_pool: str = "64MiB") -> Iterator[Path]:
    """Where a daemon listens that has host memory and an SSD, and `more` flags."""
    with short_directory() as home:
        flags = [
            f"--socket-dir={home}",
            f"--ssd-dir={ssd_dir}",
            "--ssd-pool=1GiB",
            f"--host-pool={host_pool}",
            "--device=none",
            "--metrics-address=off",
            *more,
        ]
        with subprocess.Popen([find_daemon(), *flags], stderr=subprocess.DEVNULL) as daemon:
            while not answers(home):
                assert daemon.poll() is None, "the daemon does not start"
            yield home
            daemon.terminate()


class SteppingScript:
    """A script that trains, step by step: its next line is the event to wait for."""

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
        """What it said on its standard error."""
        assert self.script.stdout is not None
        # Not communicate(): it passes over lines that came with those that were read.
        self.losses += self.script.stdout.read().split()
        _, err = self.script.communicate(timeout=_PATIENCE_S)
        assert self.script.returncode == 0, err
        return err
