"""What systemd is to memtided, for tests: starts it, keeps the descriptors that it gives away
(sd_notify(3): FDSTORE), and passes them to the next start (sd_listen_fds(3))."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

from memtide.daemon import answers
from memtide.locate import find_daemon

_FIRST = 3
# Sets what only the daemon's own process knows, and becomes it.
_START = 'export LISTEN_PID=$$; exec "$@"'


class ServiceManager:
    """Of one service, which listens in `home`."""

    def __init__(self, home: Path, flags: list[str]) -> None:
        self.home = home
        self._command = [str(find_daemon()), f"--socket-dir={home}", *flags]
        self._kept: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(home / "notify"))
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def start(self) -> None:
        """Starts the daemon with the descriptors that are kept, and returns when it listens."""
        names, kept = list(self._kept), list(self._kept.values())

        def pass_descriptors() -> None:
            aside = [os.dup2(fd, 500 + i) for i, fd in enumerate(kept)]
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
            pass_fds=range(_FIRST, _FIRST + len(names)),
            preexec_fn=pass_descriptors,
            stderr=subprocess.DEVNULL,
        )
        while not answers(self.home):
            assert self._process.poll() is None, "the daemon does not start"

    def kill(self) -> None:
        """Kills the daemon, whatever it does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._socket.sendto(b"", str(self.home / "notify"))
        self._thread.join()
        self._socket.close()
        for fd in self._kept.values():
            os.close(fd)

    def _listen(self) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._socket, 4096, 16)
            if not message:
                return
            lines = dict(line.split("=", 1) for line in message.decode().splitlines())
            if "FDSTORE" in lines:
                (self._kept[lines["FDNAME"]],) = fds
                continue
            for fd in fds:  # Of a barrier: to close it is the answer.
                os.close(fd)
            if "FDSTOREREMOVE" in lines and lines["FDNAME"] in self._kept:
                os.close(self._kept.pop(lines["FDNAME"]))
