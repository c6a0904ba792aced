"""Runs the command line, with the daemon and the library in MEMTIDED and MEMTIDE_LIBRARY."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forked_process import ForkedProcess, ForkServer

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SCRIPTS = HERE.parent / "scripts"
PACKAGE_PARENT = REPOSITORY / "pyclient"
_LIMIT_S = 600
_CHANGES = {
    "PYTHONPATH": str(PACKAGE_PARENT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "160",
    # On a busy machine, threads of many small processes slow each other down.
    "OMP_NUM_THREADS": "1",
}
_SERVER = ForkServer({**os.environ, **_CHANGES})


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="mt", dir="/tmp") as path:
        yield Path(path)


@dataclass(frozen=True)
class Outcome:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    def check(self) -> Outcome:
        """Asserts success."""
        assert self.status == 0, f"status {self.status}\n{self.out}\n{self.err}"
        return self


class Cli:
    """Runs Python and memtide in processes of their own: in forked ones, unless what is run there
    would differ from what a new interpreter runs, or `forks` is false."""

    def __init__(self, home: Path, *, forks: bool = True) -> None:
        self._home = home
        self._forks = forks
        self._changes = {**_CHANGES, "XDG_CACHE_HOME": str(home / "cache")}

    def in_new_interpreters(self) -> Cli:
        """For tests of how an interpreter starts, and of what other processes see of it."""
        return Cli(self._home, forks=False)

    def environment(self, more: dict[str, object]) -> dict[str, str]:
        """The environment of a process, with `more` in it."""
        changes = {**self._changes, **{name: str(value) for name, value in more.items()}}
        return {**os.environ, **changes}

    def python(self, *arguments: object, cwd: Path | None = None, **more: object) -> Outcome:
        """`python ARGUMENTS`, with `more` in the environment."""
        with self.start_python(*arguments, cwd=cwd, **more) as process:
            try:
                out, err = process.communicate(timeout=_LIMIT_S)
            except BaseException:
                process.kill()
                raise
        return Outcome(process.returncode, out, err)

    def start_memtide(self, *arguments: object, **more: object) -> subprocess.Popen[str]:
        """Starts `memtide ARGUMENTS` and returns at once."""
        return self.start_python("-P", "-m", "memtide", *arguments, **more)

    def start_python(
        self,
        *arguments: object,
        inside: Sequence[str] = (),
        cwd: Path | None = None,
        **more: object,
    ) -> subprocess.Popen[str]:
        """As `python`, left running: what it says is in pipes. `inside`: a command that starts it
        elsewhere."""
        words = list(map(str, arguments))
        command = [*inside, sys.executable, *words]
        environment = self.environment(more)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        forks = self._forks and not inside and _SERVER.can_run(words, environment)
        if forks:
            return ForkedProcess(_SERVER, command, env=environment, cwd=cwd, **pipes)
        return subprocess.Popen(command, env=environment, cwd=cwd, text=True, **pipes)

    def memtide(self, *arguments: object, cwd: Path | None = None, **more: object) -> Outcome:
        """`memtide ARGUMENTS`, with `more` in the environment."""
        return self.python("-P", "-m", "memtide", *arguments, cwd=cwd, **more)
