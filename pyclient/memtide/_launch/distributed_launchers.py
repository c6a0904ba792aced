"""torchrun and Accelerate's launcher: programs that start one process for each rank.

Under memtide they work as always, but start `memtide run` instead of Python. So each rank has a
session of its own, with one daemon that all ranks share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memtide._launch.program import Program, is_installed
from memtide.errors import UsageError

# The modules by which `python -m` starts them, and the commands that these stand for.
_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}


@dataclass(frozen=True)
class Launcher:
    """A launcher and its parsed arguments. Both launchers have the same names for the fields that
    say what each rank runs."""

    arguments: argparse.Namespace
    start: Callable[[argparse.Namespace], object]

    @property
    def ranks(self) -> int:
        """Number of ranks that the arguments name; 1 if they leave it to the launcher."""
        fields = vars(self.arguments)
        count = str(fields.get("nproc_per_node", fields.get("num_processes")))
        return int(count) if count.isdecimal() else 1

    def launch(self, command: list[str]) -> None:
        """Starts the ranks and waits until they have ended.

        Each rank runs `command`, followed by the program and its arguments in the form that
        `memtide run` takes. Exceptions of the launcher pass through.
        """
        program = Program(
            self.arguments.training_script,
            self.arguments.training_script_args,
            is_module=self.arguments.module,
        )
        self.arguments.module, self.arguments.no_python = False, True
        self.arguments.training_script = command[0]
        self.arguments.training_script_args = [*command[1:], *program.as_arguments()]
        self.start(self.arguments)


def launcher_in(program: Program) -> Launcher | None:
    """The launcher, if the program is one; else None.

    Wrong arguments of the launcher, and its --help, end this process. UsageError: it cannot be
    started.
    """
    name = _MODULES.get(program.name, ()) if program.is_module else (Path(program.name).name,)
    words = [*name, *program.arguments] if name else []
    if words[:1] == ["torchrun"]:
        _require("torch")
        from torch.distributed import run

        sys.argv[0] = "torchrun"  # The parser's messages begin with this name.
        launcher = Launcher(run.parse_args(words[1:]), run.run)
        launcher.arguments.run_path = False  # `memtide run` runs the script's path itself.
    elif words[:2] == ["accelerate", "launch"]:
        _require("accelerate")
        from accelerate.commands import launch

        parser = launch.launch_command_parser()
        launcher = Launcher(parser.parse_args(words[2:]), launch.launch_command)
    else:
        return None
    if launcher.arguments.no_python:
        raise UsageError("memtide run runs Python programs: leave the launcher's no-python out")
    return launcher


def _require(package: str) -> None:
    if not is_installed(package):
        raise UsageError(
            f"{package}, to which the launcher belongs, is not installed in this Python"
        )
