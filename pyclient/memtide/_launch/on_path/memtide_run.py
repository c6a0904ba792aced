"""What torch calls when a process imports it that `memtide run` has started.

Torch calls the entry points of the group torch.backends at the end of its import. The folder of
this file is on PYTHONPATH in such processes, with an entry point that names `torch_imported`; the
wheel has the same entry point. So a process that does not import torch runs nothing of memtide.

The Python of a process may lack memtide, and what is raised here would fail the import of torch:
this file imports only the standard library, and torch where torch has been imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "MEMTIDE_RUN"  # The folder of the run (run_folder.py), for the processes that it starts.

_reason = ""


def torch_imported() -> None:
    """Manages this process if it is one of a run; or says why not when it trains."""
    if VARIABLE not in os.environ:
        if any(map(_is_run, _ancestors())):
            say_at_first_step(
                f"it was started without {VARIABLE} in its environment, which memtide run sets: "
                "let it inherit the environment"
            )
        return
    try:
        started_process = importlib.import_module("memtide._launch.started_process")
    except ImportError as error:
        say_at_first_step(f"{sys.executable} cannot import memtide ({error}): install it there")
    else:
        started_process.torch_imported()


def say_at_first_step(reason: str) -> None:
    """Says on stderr, once, why this process is not managed, when an optimizer first steps in it.
    REQUIRES: torch is imported."""
    global _reason
    from torch.optim import optimizer

    if not _reason:
        optimizer.register_optimizer_step_pre_hook(_say)
    _reason = reason


def _say(*_step: Any) -> None:
    global _reason
    # The hook stays: torch iterates over all of them now.
    if _reason != _SAID:
        program = Path(sys.argv[0]).name if sys.argv else ""
        print(
            f"memtide: process {os.getpid()} ({program}) trains without memtide: {_reason}",
            file=sys.stderr,
            flush=True,
        )
        _reason = _SAID


_SAID = "said"


def _ancestors() -> Iterator[list[str]]:
    """The command line of each process above this one, as far as this user may see."""
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return
        yield [os.fsdecode(word) for word in words]
        pid = int(status.rpartition(")")[2].split()[1])


def _is_run(command: list[str]) -> bool:
    """Whether a command line is that of `memtide run`."""
    pairs = zip(command, command[1:], strict=False)
    return any(Path(word).name == "memtide" and then == "run" for word, then in pairs)
