"""torchrun and Accelerate's launcher: programs that start one process for each rank.

Under memtide they do what they always do, but what they start is `memtide run` instead of Python.
So each rank is a session of its own, of one daemon that all ranks share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memtide.errors import UsageError
from memtide.script import Program, is_installed

# By which `python -m` starts them.
_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}


@dataclass(frozen=True)
class Launcher:
    """A launcher and what it was told. Both name the fields that say what each rank runs alike."""

    told: argparse.Namespace
    start: Callable[[argparse.Namespace], object]

    def launch(self, command: list[str]) -> None:
        """Starts the ranks, each as `command` followed by its program as memtide run takes it, and
        waits until they have ended. What the launcher raises then comes out."""
        program = Program(
            self.told.training_script,
            self.told.training_script_args,
            is_module=self.told.module,
        )
        self.told.module, self.told.no_python = False, True
        self.told.training_script = command[0]
        self.told.training_script_args = [*command[1:], *program.as_arguments()]
        self.start(self.told)


def launcher_in(program: Program) -> Launcher | None:
    """The launcher that the program is; None: it is none. UsageError: it cannot be started; what it
    finds wrong with its arguments, or help that was asked for, ends this process."""
    name = _MODULES.get(program.name, ()) if program.is_module else (Path(program.name).name,)
    words = [*name, *program.arguments] if name else []
    if words[:1] == ["torchrun"]:
        _require("torch")
        from torch.distributed import run

        sys.argv[0] = "torchrun"  # In what it says of its arguments.
        launcher = Launcher(run.parse_args(words[1:]), run.run)
        launcher.told.run_path = False  # What is started runs the script's path in any case.
    elif words[:2] == ["accelerate", "launch"]:
        _require("accelerate")
        from accelerate.commands import launch

        parser = launch.launch_command_parser()
        launcher = Launcher(parser.parse_args(words[2:]), launch.launch_command)
    else:
        return None
    if launcher.told.no_python:
        raise UsageError(
            "memtide run starts programs in Python: leave the launcher's no-python out"
        )
    return launcher


def _require(package: str) -> None:
    if not is_installed(package):
        raise UsageError(f"this Python has no {package}, whose launcher is to be run")
