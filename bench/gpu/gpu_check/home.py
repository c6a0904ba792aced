"""The paths in an unpacked tarball, and how its programs are run, within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_LOG_LINES = 20
_LONGEST_END_S = 20.0


@dataclass
class Home:
    """The folder that holds bin/, lib/, python/ and examples/. All programs that it runs end at
    `deadline` (time.monotonic), with all that they started in their sessions."""

    path: Path
    fake: bool
    deadline: float = field(default=float("inf"))

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
            # The fake GPU's kernels are the CPU's, and the machines that it is for have few.
            **({"OMP_NUM_THREADS": "1", "GPU_PROBE_QUICK": "1"} if self.fake else {}),
            **more,
        }

    def script_environment(self, tensors_on_cpu: bool = False) -> dict[str, str]:
        """The environment variables that scripts that train have besides. If `fake` is set, unless
        `tensors_on_cpu`, they add torch's device over the fake CUDA, which tools/gpu-check has
        compiled (tests/fake_device)."""
        paths = os.pathsep.join([str(self.path / "python"), str(self.path / "examples")])
        if not self.fake or tensors_on_cpu:
            return {"PYTHONPATH": paths}
        return {
            "PYTHONPATH": os.pathsep.join([paths, os.environ["FAKE_DEVICE_PATH"]]),
            "MEMTIDE_FAKE_CUDA": os.environ["MEMTIDE_FAKE_CUDA"] + ",tensors=backend",
        }

    def run(self, command: list[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end. subprocess.TimeoutExpired: it did not end by the deadline, and
        was killed; what it had written to standard output is in the exception."""
        left = max(0.0, self.deadline - time.monotonic())
        with subprocess.Popen(
            [str(part) for part in command],
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=None if left == float("inf") else left)
            except subprocess.TimeoutExpired as late:
                kill_session(process)
                late.output, late.stderr = process.communicate(timeout=_LONGEST_END_S)
                raise
            except BaseException:
                kill_session(process)
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

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
                    start_new_session=True,
                )
            try:
                self._wait_for(sockets / "fd.sock", process, log)
                yield sockets
            finally:
                process.terminate()
                try:
                    process.wait(_LONGEST_END_S)
                finally:
                    kill_session(process)

    def _wait_for(self, path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        while not path.exists():
            end_of_log = "\n".join(log.read_text().splitlines()[-_LOG_LINES:])
            if process.poll() is not None:
                raise RuntimeError(
                    f"memtided ended with status {process.returncode}:\n{end_of_log}"
                )
            if time.monotonic() > self.deadline:
                raise subprocess.TimeoutExpired(str(process.args), 0, end_of_log)
            time.sleep(0.02)


def kill_session(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kills a process that leads a session, and what it started in it, and reaps the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def python(home: Home, module: str, *arguments: str) -> list[str | Path]:
    """The command that runs a module of this package in a process of its own."""
    here = Path(__file__).resolve().parent
    code = (
        f"import sys; sys.path[:0] = [{str(here.parent)!r}, {str(home.path / 'python')!r}]; "
        f"import gpu_check.{module} as m; m.main(sys.argv[1:])"
    )
    return [sys.executable, "-c", code, *arguments]
