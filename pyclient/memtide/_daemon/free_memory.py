"""The host memory that a process may still take: what is free on the machine and in its cgroup."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from memtide._daemon import inspection
from memtide._daemon.memory_cgroup import machine_bytes, tightest_limit
from memtide.errors import MemtideError

# The part of the machine's memory, or of a cgroup's limit, that is left free.
_MARGIN = 16
# The daemon's pool is asked for that often.
_POOL_VALID_S = 1.0


class FreeMemory:
    """Free memory for one of several processes that train together. Used by one thread at a
    time."""

    def __init__(self, socket_dir: Path, sharing: int, root: Path = Path("/")) -> None:
        """`socket_dir`: of the daemon, whose host pool grows as chunks come. `sharing`: the number
        of the processes. `root` is the parent of /proc and /sys, which tests replace."""
        self._socket_dir = socket_dir
        self._sharing = sharing
        self._root = root
        # A daemon in this cgroup counts against its limit, too.
        self._is_daemon_near = _is_in_same_cgroup(root, _daemon_pid(socket_dir))
        self._pool_grows_bytes = 0
        self._pool_valid_until_s = float("-inf")

    def left_bytes(self) -> int:
        """The bytes that this process may take now beside what it has. Each takes an equal part of
        what is left, at any moment, so that one that needs more gets more in the end."""
        total_bytes, available_bytes = machine_bytes(self._root)
        grows_bytes = self._pool_growth_bytes()
        left_bytes = available_bytes - total_bytes // _MARGIN - grows_bytes
        limit = tightest_limit(self._root)
        if limit is not None:
            in_group_bytes = limit.free_bytes - limit.limit_bytes // _MARGIN
            in_group_bytes -= grows_bytes if self._is_daemon_near else 0
            left_bytes = min(left_bytes, in_group_bytes)
        return max(0, left_bytes) // self._sharing

    def _pool_growth_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._pool_valid_until_s:
            self._pool_valid_until_s = now_s + _POOL_VALID_S
            try:
                node = inspection.inspect(self._socket_dir)
            except MemtideError:  # The daemon is restarting, and its pool does not grow now.
                return self._pool_grows_bytes
            self._pool_grows_bytes = sum(p.free_bytes for p in node.pools if p.tier == "host")
        return self._pool_grows_bytes


def _daemon_pid(socket_dir: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(str(socket_dir / "fd.sock"))
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def _is_in_same_cgroup(root: Path, pid: int) -> bool:
    """Whether a process is in this one's cgroup; true, if that is not to be seen."""
    try:
        ours, its = ((root / f"proc/{process}/cgroup").read_bytes() for process in ("self", pid))
    except OSError:  # It is in another namespace, or /proc hides it.
        return True
    return ours == its
