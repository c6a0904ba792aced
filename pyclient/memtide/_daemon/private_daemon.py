"""A private memtided, which starts for one script and ends with it.

The daemon holds the read end of a pipe whose write end only this process has. However the process
ends, the kernel closes the pipe, and then the daemon ends by itself.
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

from memtide._capi.locate import default_ssd_dir, find_daemon
from memtide._daemon.scratch_directory import ScratchDirectory
from memtide.errors import Unavailable

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_LONGEST_PARENT = 70
# Variables that systemd sets for its services. The script may be a service; its daemon is not.
_SERVICE_VARIABLES = {
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
}


@dataclass(frozen=True)
class Pools:
    """The pools of a private daemon. None: the daemon's default."""

    device_bytes: int | None = None  # The pool of each device.
    host_bytes: int | None = None
    ssd_bytes: int | None = None
    # Several daemons may use the same directory: each makes one of its own in it.
    ssd_dir: Path | None = None
    # "auto", "none", "emulated", "emulated:2", "cuda", or GPUs as "cuda:1" or UUIDs with commas.
    device: str | None = None
    # The memory that the daemon and this process may use together: the daemon's balloon keeps to
    # it.
    memory_limit_bytes: int | None = None

    def named(self) -> bool:
        """Whether the user set any of them."""
        return self != Pools()


def answers(socket_dir: Path) -> bool:
    """Whether a daemon listens at `socket_dir`."""
    return refusal(socket_dir) is None


def refusal(socket_dir: Path) -> OSError | None:
    """Why this process reaches no daemon at `socket_dir`; None: one listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(socket_dir / "fd.sock"))
        except OSError as error:
            return error
    return None


@dataclass
class PrivateDaemon:
    """A running memtided that this process started. `stop` ends it and removes its directories."""

    socket_dir: Path
    process: subprocess.Popen[bytes]
    log: Path
    _lifeline: int
    _scratch: list[ScratchDirectory]
    _owner: int = field(default_factory=os.getpid)
    _is_awaited: bool = True  # Whether `stop` lets the daemon end by itself, and waits for that.

    @classmethod
    def start(cls, pools: Pools, socket_dir: Path | None = None) -> PrivateDaemon:
        """Starts memtided and returns when it listens.

        Unavailable: memtided ended before that, or the directory of the SSD pool is not writable.
        """
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
                    env={k: v for k, v in os.environ.items() if k not in _SERVICE_VARIABLES},
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
            log_text = log.read_text(errors="replace").strip()[-2000:]
            daemon.stop()
            raise Unavailable(f"{error}: {' '.join(command)}\n{log_text}") from None
        return daemon

    def hurry(self) -> None:
        """From now on, `stop` kills the daemon and returns at once: a user waits for this process
        to end. The kernel frees what the daemon has, which takes up to a second."""
        self._is_awaited = False

    def stop(self) -> None:
        """Ends the daemon and waits for its end. A second call, or one in a forked child, does
        nothing."""
        if os.getpid() != self._owner or self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        if self._is_awaited:
            try:
                self.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        else:
            self.process.kill()
        for directory in self._scratch:
            directory.remove()

    def _forget_lifeline(self) -> None:
        """Closes the pipe in a forked child, which otherwise would keep the daemon running."""
        if self._lifeline >= 0:
            with contextlib.suppress(OSError):
                os.close(self._lifeline)


def _runtime_parent() -> Path:
    """The parent of the socket directory. The path of a socket is limited to 107 bytes, so TMPDIR,
    which may be long, is not used."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if 0 < len(runtime) <= _LONGEST_PARENT and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime)
    return Path("/tmp")


def _ssd_scratch(parent: Path) -> ScratchDirectory:
    try:
        return ScratchDirectory(parent)
    except OSError as error:
        raise Unavailable(
            f"the SSD pool cannot be created in {parent} ({error.strerror}): set --ssd-dir to a "
            "directory that you can write to, or use no SSD pool: --ssd-pool 0"
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
    if pools.host_bytes is not None:
        flags.append(f"--host-pool={pools.host_bytes}")
    if pools.memory_limit_bytes is not None:
        flags.append(f"--memory-limit={pools.memory_limit_bytes}")
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
            raise Unavailable(f"memtided ended with status {process.returncode} while it started")
        if time.monotonic() > deadline:
            process.kill()
            raise Unavailable(f"memtided did not listen within {_START_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
