"""The results of scripts without memtide, with which their runs under memtide are compared.

Each script is run once for all tests, in a process that is forked from one with torch imported:
importing torch takes longer than most of the scripts.
"""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import runpy
import sys
from pathlib import Path

_LIMIT_S = 600
_forkserver = multiprocessing.get_context("forkserver")
# A process imports the second one with its first optimizer.
_forkserver.set_forkserver_preload(["torch", "torch._dynamo"])


class ReferenceRuns:
    """The results, in a folder that several processes may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def result(self, script: Path, *arguments: object, threads: int = 1) -> Path:
        """The file that the script writes to the path in RESULT."""
        command = list(map(str, arguments))
        run = repr((script.name, command, threads))
        result = self._folder / hashlib.sha256(run.encode()).hexdigest()
        with result.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                unfinished, log = result.with_suffix(".unfinished"), result.with_suffix(".log")
                process = _forkserver.Process(
                    target=_run, args=(script, command, threads, unfinished, log)
                )
                process.start()
                process.join(_LIMIT_S)
                assert process.exitcode == 0, f"status {process.exitcode}\n{log.read_text()}"
                unfinished.rename(result)
        return result


def _run(script: Path, arguments: list[str], threads: int, result: Path, log: Path) -> None:
    import torch

    with log.open("w") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    torch.set_num_threads(threads)
    os.environ["RESULT"] = str(result)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
