"""A service manager for tests, in systemd's place: it starts memtided, holds the descriptors that
memtided stores (sd_notify(3): FDSTORE), and passes them to the next start (sd_listen_fds(3))."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import answers

_FIRST = 3
# LISTEN_PID is the daemon's own process id, which the shell has until it becomes the daemon.
_START = 'export LISTEN_PID=$$; exec "$@"'


class ServiceManager:
    """Manages one memtided, which listens in `home`."""

    def __init__(self, home: Path, flags: list[str], log: int = subprocess.DEVNULL) -> None:
        """`log`: a descriptor to which the daemon writes its log."""
        self.home = home
        self._log = log
        self._command = [str(find_daemon()), f"--socket-dir={home}", *flags]
        self._stored: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(home / "notify"))
        self._handled = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def start(self) -> None:
        """Starts the daemon with the stored descriptors, and returns when it listens."""
        names, stored = list(self._stored), list(self._stored.values())

        def pass_descriptors() -> None:
            above = max([*stored, _FIRST + len(stored)]) + 1
            aside = [os.dup2(fd, above + i, inheritable=False) for i, fd in enumerate(stored)]
            for i, fd in enumerate(aside):
                os.dup2(fd, _FIRST + i)

        self._process = subprocess.Popen(
            ["bash", "-c", _START, "bash", *self._command],
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(self.home / "notify"),
                "LISTEN_FDS": str(len(names)),
                "LISTEN_FDNAMES": ":".join(names),
            },
            # Descriptors that were not made inheritable are closed all the same. With pass_fds all
            # these numbers would have to be in use before.
            close_fds=False,
            preexec_fn=pass_descriptors,
            stderr=self._log,
        )
        while not answers(self.home):
            assert self._process.poll() is None, "the daemon does not start"

    def kill(self) -> None:
        """Kills the daemon at any moment, with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        # Messages that the daemon has sent before are in the queue.
        self._handled.clear()
        self._socket.sendto(b"SYNC=1", str(self.home / "notify"))
        self._handled.wait()

    def forget(self) -> None:
        """The machine has ended: what was stored is gone."""
        for descriptor in self._stored.values():
            os.close(descriptor)
        self._stored.clear()

    @property
    def pid(self) -> int:
        """The process id of the daemon."""
        assert self._process is not None
        return self._process.pid

    def exit_status(self) -> int | None:
        """The exit status of a daemon that has ended by itself, as Popen.returncode."""
        assert self._process is not None
        return self._process.poll()

    def close(self) -> None:
        self.kill()
        self._socket.sendto(b"", str(self.home / "notify"))
        self._thread.join()
        self._socket.close()
        for fd in self._stored.values():
            os.close(fd)

    def _listen(self) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._socket, 4096, 16)
            if not message:
                return
            for fd in fds:  # Or each daemon would have them besides those that it is passed.
                os.set_inheritable(fd, False)
            lines = dict(line.split("=", 1) for line in message.decode().splitlines())
            if "FDSTORE" in lines:
                (self._stored[lines["FDNAME"]],) = fds
                continue
            if "SYNC" in lines:
                self._handled.set()
            for fd in fds:  # A barrier's descriptor: closing it is the answer.
                os.close(fd)
            if "FDSTOREREMOVE" in lines and lines["FDNAME"] in self._stored:
                os.close(self._stored.pop(lines["FDNAME"]))
