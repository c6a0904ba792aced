"""The results of scripts without memtide, with which their runs under memtide are compared.

Each script is run once for all tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

from harness import Cli

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")


class ReferenceRuns:
    """The results, in a folder that several processes may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cli = Cli(folder)

    def result(
        self,
        script: Path,
        *arguments: object,
        ranks: int = 0,
        threads: int = 1,
        **environment: object,
    ) -> Path:
        """The path that the script had in RESULT, which the names of its files begin with.
        `ranks`: the number of processes that torchrun starts; 0: it runs without a launcher."""
        launcher = (*_TORCHRUN, f"--nproc-per-node={ranks}") if ranks else ()
        command = [*launcher, script, *map(str, arguments)]
        run = repr((script.read_bytes(), command, threads, sorted(environment.items())))
        done = self._folder / hashlib.sha256(run.encode()).hexdigest()
        with done.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                unfinished = done.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                more = {"OMP_NUM_THREADS": threads, **environment}
                self._cli.python(*command, RESULT=unfinished / "result", **more).check()
                unfinished.rename(done)
        return done / "result"
