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

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SCRIPTS = HERE.parent / "scripts"
PACKAGE_PARENT = REPOSITORY / "pyclient"
_LIMIT_S = 600


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
    """Runs Python and memtide in processes of their own."""

    def __init__(self, home: Path) -> None:
        self._changes = {
            "PYTHONPATH": str(PACKAGE_PARENT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(home / "cache"),
            "COLUMNS": "160",
            # On a busy machine, threads of many small processes slow each other down.
            "OMP_NUM_THREADS": "1",
        }

    def environment(self, more: dict[str, object]) -> dict[str, str]:
        """The environment of a process, with `more` in it."""
        changes = {**self._changes, **{name: str(value) for name, value in more.items()}}
        return {**os.environ, **changes}

    def python(self, *arguments: object, cwd: Path | None = None, **more: object) -> Outcome:
        """`python ARGUMENTS`, with `more` in the environment."""
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment(more),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def start_memtide(self, *arguments: object, **more: object) -> subprocess.Popen[str]:
        """Starts `memtide ARGUMENTS` and returns at once."""
        return self.start_python("-P", "-m", "memtide", *arguments, **more)

    def start_python(
        self, *arguments: object, inside: Sequence[str] = (), **more: object
    ) -> subprocess.Popen[str]:
        """As `python`, left running: what it says is in pipes. `inside`: a command that starts it
        elsewhere."""
        return subprocess.Popen(
            [*inside, sys.executable, *map(str, arguments)],
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def memtide(self, *arguments: object, cwd: Path | None = None, **more: object) -> Outcome:
        """`memtide ARGUMENTS`, with `more` in the environment."""
        return self.python("-P", "-m", "memtide", *arguments, cwd=cwd, **more)
