"""The functions that torch calls when a process of `memtide run` imports it.

Torch calls the entry points of the group torch.backends at the end of its import. The folder of
this file is on PYTHONPATH in such processes, with an entry point that names `torch_imported`; the
wheel has the same entry point. So a process that does not import torch runs nothing of memtide.

The Python of a process may lack memtide, and what is raised here would fail the import of torch:
outside of a `try`, the files of this folder import the standard library and each other alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

if __package__:  # The wheel's entry point is called.
    from memtide._launch.on_path import memtide_unmanaged as unmanaged
else:
    import memtide_unmanaged as unmanaged  # type: ignore[import-not-found, no-redef]


def torch_imported() -> None:
    """Manages this process if it is one of a run; or says why not when it trains."""
    if unmanaged.VARIABLE not in os.environ:
        if any(map(_is_run, _ancestors())):
            unmanaged.say_at_first_step(
                f"it was started without {unmanaged.VARIABLE} in its environment, which memtide "
                "run sets: let it inherit the environment"
            )
        return
    try:
        from memtide._launch import started_process
    except ImportError as error:
        unmanaged.say_at_first_step(
            f"{sys.executable} cannot import memtide ({error}): install it there"
        )
    else:
        started_process.torch_imported()


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
