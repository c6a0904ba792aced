"""The paths in an unpacked tarball, and how its programs are run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOG_LINES = 20


@dataclass(frozen=True)
class Home:
    """The folder that holds bin/, lib/, python/ and examples/."""

    path: Path
    fake: bool

    def program(self, name: str) -> Path:
        """A program, or its counterpart that is linked with the fake CUDA if `fake` is set."""
        return self.path / "bin" / (f"{name}_fake_cuda" if self.fake else name)

    @property
    def library(self) -> Path:
        """libmemtide.so, or its counterpart that is linked with the fake CUDA."""
        name = "libmemtide_fake_cuda.so" if self.fake else "libmemtide.so"
        return self.path / "lib" / name

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of programs and scripts that use the memtide of this folder."""
        return {
            **os.environ,
            "MEMTIDED": str(self.program("memtided")),
            "MEMTIDE_LIBRARY": str(self.library),
            "PYTHONPATH": str(self.path / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
        }

    def run(
        self, command: list[str | Path], timeout_s: float, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end."""
        return subprocess.run(
            [str(part) for part in command],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextmanager
    def daemon(self, *flags: str, **more: str) -> Iterator[Path]:
        """Runs a memtided during the block, which gets its socket directory."""
        with tempfile.TemporaryDirectory(prefix="mt", dir="/tmp") as scratch:
            sockets = Path(scratch) / "s"
            log = Path(scratch) / "log"
            command = [
                self.program("memtided"),
                f"--socket-dir={sockets}",
                f"--ssd-dir={scratch}/ssd",
                "--ssd-pool=1GiB",
                "--metrics-address=off",
                *flags,
            ]
            with log.open("w") as output:
                process = subprocess.Popen(
                    [str(part) for part in command],
                    env=self.environment(**more),
                    stdout=output,
                    stderr=output,
                )
            try:
                _wait_for(sockets / "fd.sock", process, log)
                yield sockets
            finally:
                process.terminate()
                process.wait(60)


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    while not path.exists():
        if process.poll() is not None:
            end_of_log = "\n".join(log.read_text().splitlines()[-_LOG_LINES:])
            raise RuntimeError(f"memtided ended with status {process.returncode}:\n{end_of_log}")
        time.sleep(0.02)


def python(home: Home, module: str, *arguments: str) -> list[str | Path]:
    """The command that runs a module of this package in a process of its own."""
    here = Path(__file__).resolve().parent
    code = (
        f"import sys; sys.path[:0] = [{str(here.parent)!r}, {str(home.path / 'python')!r}]; "
        f"import gpu_check.{module} as m; m.main(sys.argv[1:])"
    )
    return [sys.executable, "-c", code, *arguments]
