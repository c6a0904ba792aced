"""Python programs in processes that are forked from one with torch imported (fork_server.py)."""

from __future__ import annotations

import atexit
import marshal
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import python_commands

_SERVER = Path(__file__).with_name("fork_server.py")


class ForkServer:
    """One for each process that runs tests. It starts when it is first used, in `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._socket: Path | None = None

    def can_run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether `python ARGUMENTS` in this environment is the same if it is forked."""
        own = python_commands.read_once(self._environment)
        same = python_commands.read_once(environment) == own
        return same and python_commands.program_of(arguments) is not None

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        descriptors: Sequence[int],
    ) -> socket.socket:
        """Runs `python ARGUMENTS` with these as stdin, stdout and stderr. Returns the connection on
        which its process id comes, and its status. REQUIRES: can_run."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "descriptors": [0, 1, 2],
            "leads_session": False,
        }
        body = marshal.dumps(request)
        with self._lock:
            self._socket = self._socket or self._start()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self._socket))
        socket.send_fds(connection, [len(body).to_bytes(4, "little")], list(descriptors))
        connection.sendall(body)
        return connection

    def _start(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="mtfork", dir="/tmp")
        path = Path(folder.name) / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(64)
            command = [sys.executable, _SERVER, path]
            process = subprocess.Popen(command, env=self._environment, stdin=listener)

        def end() -> None:
            process.terminate()
            process.wait()
            folder.cleanup()

        atexit.register(end)
        return path


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
        try:
            self._connection = self._server.fork(
                args[1:], environment, Path(folder or Path.cwd()), (stdin, stdout, stderr)
            )
        finally:
            self._close_pipe_fds(*ends)
        self.pid = self._receive(8)
        self._child_created = True

    def _receive(self, size_bytes: int) -> int:
        answer = self._connection.recv(size_bytes, socket.MSG_WAITALL)
        assert len(answer) == size_bytes, "the process that forks others has ended"
        return int.from_bytes(answer, "little", signed=True)

    def _read_status(self, timeout_s: float | None) -> None:
        if self.returncode is None and select.select([self._connection], [], [], timeout_s)[0]:
            self.returncode = self._receive(4)
            self._connection.close()

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
