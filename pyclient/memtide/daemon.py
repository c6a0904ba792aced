"""A private memtided: started for one script, ended with it.

The daemon holds the read end of a pipe whose write end only this process has. However the process
ends, the kernel closes the pipe and the daemon ends; nothing has to be told.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from memtide.errors import Unavailable
from memtide.locate import default_ssd_dir, find_daemon
from memtide.scratch import ScratchDirectory

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_LONGEST_PARENT = 70
# What a service manager tells its services: the script may be one, its daemon is none.
_OF_A_SERVICE = {
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
}


@dataclass(frozen=True)
class Pools:
    """What a private daemon is told to own. None: the daemon's own default."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    ssd_bytes: int | None = None
    # Any number of daemons may be told the same: each makes a directory of its own in it.
    ssd_dir: Path | None = None
    # "auto", "none", "emulated", "cuda", "cuda:1" or a GPU's UUID.
    device: str | None = None
    daemons: int = 1  # That divide what the machine has among them, where no size is given.

    def named(self) -> bool:
        """Whether any of them was asked for."""
        return self != Pools()


def answers(socket_dir: Path) -> bool:
    """Whether a daemon listens at `socket_dir`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(socket_dir / "fd.sock"))
        except OSError:
            return False
    return True


@dataclass
class PrivateDaemon:
    """A running memtided of this process. `stop` ends it and removes its directories."""

    socket_dir: Path
    process: subprocess.Popen[bytes]
    log: Path
    _lifeline: int
    _scratch: list[ScratchDirectory]
    _owner: int = field(default_factory=os.getpid)

    @classmethod
    def start(cls, pools: Pools, socket_dir: Path | None = None) -> PrivateDaemon:
        """Starts memtided and returns when it listens. Unavailable: it ended instead, or the SSD
        pool's directory cannot be written."""
        program = find_daemon()
        scratch = []
        ssd_dir = None
        if pools.ssd_bytes != 0:
            scratch.append(_ssd_scratch(pools.ssd_dir or default_ssd_dir()))
            ssd_dir = scratch[0].path
        home = ScratchDirectory(_runtime_parent())
        scratch.append(home)
        socket_dir = socket_dir or home.path
        read_end, write_end = os.pipe()
        log = home.path / "memtided.log"
        command = [str(program), *_flags(pools, socket_dir, ssd_dir, read_end)]
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    env={k: v for k, v in os.environ.items() if k not in _OF_A_SERVICE},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[read_end],
                    start_new_session=True,
                )
        finally:
            os.close(read_end)
        daemon = cls(socket_dir, process, log, write_end, scratch)
        os.register_at_fork(after_in_child=daemon._forget_lifeline)
        try:
            _wait_until(lambda: answers(daemon.socket_dir), process)
        except Unavailable as error:
            said = log.read_text(errors="replace").strip()[-2000:]
            daemon.stop()
            raise Unavailable(f"{error}: {' '.join(command)}\n{said}") from None
        return daemon

    def stop(self) -> None:
        """Ends the daemon and waits for it. Harmless when called twice or in a forked child."""
        if os.getpid() != self._owner or self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for directory in self._scratch:
            directory.remove()

    def _forget_lifeline(self) -> None:
        """A forked child must not keep the daemon alive."""
        if self._lifeline >= 0:
            with contextlib.suppress(OSError):
                os.close(self._lifeline)


def _runtime_parent() -> Path:
    """Where sockets may be: their paths hold 107 bytes, so not under any TMPDIR."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if 0 < len(runtime) <= _LONGEST_PARENT and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime)
    return Path("/tmp")


def _ssd_scratch(parent: Path) -> ScratchDirectory:
    try:
        return ScratchDirectory(parent)
    except OSError as error:
        raise Unavailable(
            f"no SSD pool can be made in {parent} ({error.strerror}): name a directory that you "
            "can write to by --ssd-dir DIR, or have no such pool by --ssd-pool 0"
        ) from None


def _flags(pools: Pools, socket_dir: Path, ssd_dir: Path | None, lifeline_fd: int) -> list[str]:
    flags = [
        f"--socket-dir={socket_dir}",
        f"--lifeline-fd={lifeline_fd}",
        "--metrics-address=off",
    ]
    device = pools.device or ("none" if pools.device_bytes == 0 else None)
    if device is not None:
        flags.append(f"--device={device}")
    if pools.device_bytes:
        flags.append(f"--device-pool={pools.device_bytes}")
    if pools.daemons != 1:
        flags.append(f"--daemons={pools.daemons}")
    if pools.host_bytes is not None:
        flags.append(f"--host-pool={pools.host_bytes}")
    if pools.ssd_bytes == 0:
        flags.append("--no-ssd")
    else:
        flags.append(f"--ssd-dir={ssd_dir}")
        if pools.ssd_bytes is not None:
            flags.append(f"--ssd-pool={pools.ssd_bytes}")
    return flags


def _wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not ready():
        if process.poll() is not None:
            raise Unavailable(f"memtided ended with status {process.returncode} as it started")
        if time.monotonic() > deadline:
            process.kill()
            raise Unavailable(f"memtided did not listen within {_START_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
