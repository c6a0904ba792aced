"""The results of scripts without memtide, with which their runs under memtide are compared.

Each script is run once for all tests.
"""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

from harness import Cli


class ReferenceRuns:
    """The results, in a folder that several processes may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cli = Cli(folder)

    def result(self, script: Path, *arguments: object, threads: int = 1) -> Path:
        """The file that the script writes to the path in RESULT."""
        run = repr((script.name, [*map(str, arguments)], threads))
        result = self._folder / hashlib.sha256(run.encode()).hexdigest()
        with result.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                unfinished = result.with_suffix(".unfinished")
                environment = {"RESULT": unfinished, "OMP_NUM_THREADS": threads}
                self._cli.python(script, *arguments, **environment).check()
                unfinished.rename(result)
        return result
