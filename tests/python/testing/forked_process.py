"""Python programs in processes that are forked from one with torch imported (fork_server.py)."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("fork_server.py")
# Variables that an interpreter, torch or a library that torch loads reads once: at its start, or at
# its import.
_READ_ONCE = ("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_")
_READ_ONCE += ("LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "TRITON_")
# The server gives what it forks the first; torch reads the second when it compiles, and sets it in
# the process of the tests.
_SET_LATER = {"PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"}


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and name not in _SET_LATER
    }


def _program(arguments: Sequence[str]) -> dict[str, object] | None:
    """What these arguments of python run; None: they have options that only it knows."""
    safe_path = arguments[0] == "-P"
    first, *rest = arguments[safe_path:]
    kind = {"-m": "module", "-c": "code"}.get(first)
    if kind is not None:
        name, *rest = rest
    elif Path(first).suffix == ".py":
        kind, name = "script", first
    else:
        return None
    return {"kind": kind, "name": name, "arguments": [first, *rest], "safe_path": safe_path}


class ForkServer:
    """One for each process that runs tests. It starts when it is first used, in `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def can_run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether `python ARGUMENTS` in this environment is the same if it is forked."""
        same = _read_once(environment) == _read_once(self._environment)
        return same and _program(arguments) is not None

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        descriptors: Sequence[int],
    ) -> int:
        """Runs `python ARGUMENTS` with these as stdin, stdout and stderr, and writes its status to
        the fourth. Returns its process id. REQUIRES: can_run."""
        request = {
            **(_program(arguments) or {}),
            "command": arguments,
            "environment": dict(environment),
            "folder": str(folder),
        }
        body = json.dumps(request).encode()
        with self._lock:
            connection = self._connection = self._connection or self._start()
            socket.send_fds(connection, [len(body).to_bytes(4, "little")], list(descriptors))
            connection.sendall(body)
            answer = connection.recv(8, socket.MSG_WAITALL)
        assert len(answer) == 8, "the process that forks others has ended"
        return int.from_bytes(answer, "little")

    def _start(self) -> socket.socket:
        connection, other = socket.socketpair()
        with other:
            command = [sys.executable, "-P", _SERVER]
            process = subprocess.Popen(command, env=self._environment, stdin=other)

        def end() -> None:
            connection.close()
            process.wait()

        atexit.register(end)
        return connection


class ForkedProcess(subprocess.Popen[str]):
    """As Popen of `python ARGUMENTS`. The server is its parent, and passes its status on."""

    def __init__(self, server: ForkServer, command: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(command, text=True, **options)

    def _execute_child(self, args: Any, *parameters: Any) -> None:
        # The parameters of Popen's method: cwd and env, and later both ends of three pipes.
        folder, environment = parameters[4:6]
        ends = parameters[9:15]
        stdin, _, _, stdout, _, stderr = ends
        self._status, status = os.pipe()
        try:
            self.pid = self._server.fork(
                args[1:], environment, Path(folder or Path.cwd()), (stdin, stdout, stderr, status)
            )
        finally:
            os.close(status)
            self._close_pipe_fds(*ends)
        self._child_created = True

    def _read_status(self, timeout_s: float | None) -> None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            status = os.read(self._status, 4)
            os.close(self._status)
            assert status, "the process that forks others has ended"
            self.returncode = int.from_bytes(status, "little", signed=True)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        # A thread that waits has the lock.
        if self._waitpid_lock.acquire(blocking=False):
            try:
                self._read_status(0)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            self._read_status(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode
