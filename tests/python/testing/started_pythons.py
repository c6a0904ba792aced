"""Interpreters that a forked process starts are forked, too: stand_in.py asks the server for them.

The server replaces the function by which `subprocess` and `multiprocessing` start a program. So the
programs that they start are the same, and `sys.executable` is, but where it would be a new
interpreter, stand_in.py runs in its place. An interpreter that a process becomes by `os.exec` is a
new one.
"""

from __future__ import annotations

import _posixsubprocess
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import python_commands

_STAND_IN = str(Path(__file__).with_name("stand_in.py"))
# The parameters after `args`, `executable_list`, `close_fds`, `pass_fds`, `cwd` and `env` that ask
# for something which the server does not do, and the values that ask for nothing: process group,
# group, groups, user, umask, function to call before.
_UNUSUAL = slice(10, 16)
_USUAL = (-1, None, None, None, -1, None)


def fork_what_is_started(server: Path, environment: Mapping[str, str]) -> None:
    """From now on, this process and those forked from it start interpreters by the server, whose
    environment was this one. REQUIRES: subprocess is not imported."""
    assert "subprocess" not in sys.modules
    fork_exec = _posixsubprocess.fork_exec
    read_once, user = python_commands.read_once(environment), os.geteuid()

    def start(
        args: Sequence[Any],
        executables: Sequence[Any],
        close_fds: bool,
        pass_fds: Any,
        folder: Any,
        variables: Sequence[bytes] | None,
        *more: Any,
    ) -> int:
        words = list(map(os.fsdecode, args))
        is_python = words[0] == sys.executable == os.fsdecode(executables[0])
        if is_python and more[_UNUSUAL] == _USUAL and os.geteuid() == user:
            same = python_commands.read_once(_environment(variables)) == read_once
            if same and python_commands.program_of(words[1:]) is not None:
                args = [sys.executable, "-I", "-S", _STAND_IN, str(server), *words[1:]]
        return fork_exec(args, executables, close_fds, pass_fds, folder, variables, *more)

    replaced: Callable[..., int] = start
    _posixsubprocess.fork_exec = replaced


def _environment(variables: Sequence[bytes] | None) -> Mapping[str, str]:
    """The environment of a program that is started with these variables; None: those of this
    process."""
    if variables is None:
        return os.environ
    pairs = (os.fsdecode(each).partition("=") for each in variables)
    return {name: value for name, _, value in pairs}
