"""The load test's acts on the node and on the sessions, each for one phase."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from limited_cgroup import ENTER
from node import MIB, RESERVE, Node
from sessions import LEASE_S, Sessions

# A call of a session that behaves well takes no longer, with the load held to one CPU.
BOUND_MS = 15_000
_SLOW_DISK_BYTES_PER_S = 24 * MIB
# Errors that a fault permits are permitted for this long after it, as replies are on their way.
GRACE_S = 3.0
_SPARE_DESCRIPTORS = 24
_DAEMON_LIVES_S = 6.0

# Lets processes live for some seconds, while it disturbs some of them.
Act = Callable[[Node, Sessions, random.Random, float], None]


@dataclass(frozen=True)
class Phase:
    """A fault, what it permits the daemon to refuse, and what happens to the sessions meanwhile."""

    name: str
    act: Act
    fault: Callable[[Node], contextlib.AbstractContextManager[None]] | None = None
    may_refuse: frozenset[str] = frozenset()
    may_not_connect: bool = False
    bound_ms: int = BOUND_MS


def _leave_alone(node: Node, sessions: Sessions, rng: random.Random, seconds: float) -> None:
    del node, rng
    sessions.run_for(seconds)


def _disturb(node: Node, sessions: Sessions, rng: random.Random, seconds: float) -> None:
    """Kills and stops processes at random: some for a moment, some beyond their lease."""
    del node
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        sessions.run_for(min(left, rng.random() * 0.6))
        alive = [s.process for s in sessions.slots if s.process and not s.process.stopped_at]
        if not alive:
            continue
        process, choice = rng.choice(alive), rng.random()
        if choice < 0.6:
            sessions.kill(process)
        elif choice < 0.9:
            sessions.stop(process, 1.0, beyond_lease=False)
        else:
            sessions.stop(process, LEASE_S + 2, beyond_lease=True)
    # Before the node is disturbed otherwise, which takes long: only run_for() resumes them in time.
    sessions.resume_all()


def _kill_daemon(node: Node, sessions: Sessions, rng: random.Random, seconds: float) -> None:
    """Kills the daemon again and again, at any moment."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        sessions.run_for(min(left, 1 + rng.random() * _DAEMON_LIVES_S))
        node.restart()
        sessions.circumstances.daemon_started = time.monotonic()
    sessions.run_for(3)


@contextlib.contextmanager
def _full_disk(node: Node) -> Iterator[None]:
    """Fills the file system of the SSD directory to its last block."""
    assert node.disk is not None
    filler = node.disk / "filler"
    with filler.open("wb") as file:
        size = 64 * MIB
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError:
                size //= 2
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def _few_descriptors(node: Node) -> Iterator[None]:
    """Leaves the daemon few descriptors beside those that it has open."""
    pid = node.manager.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = max(int(path.name) for path in (Path("/proc") / str(pid) / "fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most + _SPARE_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


_HOLD_MEMORY = """
import sys, time
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")  # If the kernel must end a process, it is this one.
held = bytearray(int(sys.argv[1]))
held[::4096] = bytes(b"x") * len(held[::4096])
print("holds", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def _little_memory(node: Node) -> Iterator[None]:
    """Another program of the cgroup takes what is available, down to half of the reserve."""
    assert node.group is not None
    is_v1 = (node.group.path / "memory.limit_in_bytes").exists()
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (
        int((node.group.path / name).read_text())
        for name in (names if is_v1 else ("memory.max", "memory.current"))
    )
    size = max(0, limit - used - RESERVE // 2)
    holder = subprocess.Popen(
        [sys.executable, "-c", ENTER, str(node.group.path), "-c", _HOLD_MEMORY, str(size)],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        yield
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


_BLKIO = Path("/sys/fs/cgroup/blkio")


@contextlib.contextmanager
def _slow_disk(node: Node) -> Iterator[None]:
    """Slows the daemon's reads and writes of its disk."""
    assert node.disk is not None
    device = node.disk.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    group = _BLKIO / f"memtide-load-{os.getpid()}"
    group.mkdir()
    try:
        for direction in ("read", "write"):
            limit = f"{name} {_SLOW_DISK_BYTES_PER_S}"
            (group / f"blkio.throttle.{direction}_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(node.manager.pid))
        try:
            yield
        finally:
            (_BLKIO / "cgroup.procs").write_text(str(node.manager.pid))
    finally:
        group.rmdir()


def cannot_slow_disk() -> str:
    """Why no disk can be slowed here; nothing: it can."""
    if os.access(_BLKIO / "cgroup.procs", os.W_OK):
        return ""
    return f"{_BLKIO}/cgroup.procs cannot be written (cgroups of version 1)"


QUIET = Phase("quiet", _leave_alone)
# With these the daemon goes on.
PHASES = (
    Phase("kills", _disturb),
    Phase("full disk", _disturb, _full_disk, frozenset({"open", "allocate"})),
    Phase("descriptors", _disturb, _few_descriptors, frozenset({"open"}), may_not_connect=True),
    Phase("memory pressure", _disturb, _little_memory, frozenset({"open", "allocate"})),
    # An open waits ten seconds for memory that other jobs have to write to the disk before.
    Phase("slow disk", _disturb, _slow_disk, frozenset({"open"}), bound_ms=2 * BOUND_MS),
)
RESTARTS = Phase("daemon killed", _kill_daemon, may_not_connect=True)
