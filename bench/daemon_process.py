"""Starts a memtided for one benchmark, with pools of exactly the size that it needs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


class DaemonFailed(Exception):
    """memtided did not start; the message is its log."""


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    socket_dir: Path
    ssd_dir: Path
    pid: int


@contextlib.contextmanager
def running(program: Path, ssd_parent: Path, flags: Sequence[str]) -> Iterator[Daemon]:
    """Runs memtided during the block. It also exits when this process ends: it watches a pipe."""
    home = Path(tempfile.mkdtemp(prefix="memtide-bench-"))
    ssd_parent.mkdir(parents=True, exist_ok=True)
    ssd_dir = Path(tempfile.mkdtemp(prefix="ssd-", dir=ssd_parent))
    lifeline, held_by_us = os.pipe()
    log = home / "memtided.log"
    command = [
        str(program),
        f"--socket-dir={home}",
        f"--lifeline-fd={lifeline}",
        "--metrics-address=127.0.0.1:0",
        *([] if "--no-ssd" in flags else [f"--ssd-dir={ssd_dir}"]),
        *flags,
    ]
    try:
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdout=output, stderr=output, pass_fds=[lifeline])
        try:
            _wait_until_it_listens(daemon, home / "fd.sock", log)
            yield Daemon(home, ssd_dir, daemon.pid)
        finally:
            os.close(held_by_us)
            held_by_us = -1
            try:
                daemon.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
    finally:
        os.close(lifeline)
        if held_by_us >= 0:
            os.close(held_by_us)
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(ssd_dir, ignore_errors=True)


def _wait_until_it_listens(daemon: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
            contextlib.suppress(OSError),
        ):
            probe.connect(str(path))
            return
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            daemon.wait()
            raise DaemonFailed(log.read_text(encoding="utf-8", errors="replace").strip())
        time.sleep(0.02)
