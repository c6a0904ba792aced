"""A script that goes on training while a test looks at the node, until the test lets it end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from harness import SCRIPTS

# Trains until the file that it is given is there, and prints each step's loss.
SCRIPT = SCRIPTS / "squeezed.py"
_PATIENCE_S = 120.0
_MOST_STEPS = 500


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
