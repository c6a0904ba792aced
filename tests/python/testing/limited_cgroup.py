"""A memory cgroup without swap, of the version that the machine mounts, for programs of tests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_END_LIMIT_S = 30.0
_V1, _V2 = Path("sys/fs/cgroup/memory"), Path("sys/fs/cgroup")

# Enters the cgroup argv[1] and becomes `python argv[2:]`.
ENTER = """
import os, sys
with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as file:
    file.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class NoCgroup(Exception):
    """No cgroup can be made here; the message says why."""


@dataclass(frozen=True)
class LimitedCgroup:
    """A cgroup with a limit. `ENTER` puts a program into it."""

    path: Path
    is_v1: bool

    def most_used_bytes(self) -> int:
        """The most that its processes used together, page cache included."""
        name = "memory.max_usage_in_bytes" if self.is_v1 else "memory.peak"
        return int((self.path / name).read_text(encoding="ascii"))

    def limit(self, limit_bytes: int) -> None:
        """Sets the limit, which is not below what is used, and allows no swap."""
        names = ["memory.limit_in_bytes"] if self.is_v1 else ["memory.max"]
        # Version 1 counts memory and swap together there, and has no such file without swap.
        if self.is_v1 and (self.path / "memory.memsw.limit_in_bytes").exists():
            names.append("memory.memsw.limit_in_bytes")
        for name in names:
            (self.path / name).write_text(str(limit_bytes), encoding="ascii")
        if not self.is_v1 and (self.path / "memory.swap.max").exists():
            (self.path / "memory.swap.max").write_text("0", encoding="ascii")


@contextlib.contextmanager
def limited_cgroup(limit_bytes: int, root: Path = Path("/")) -> Iterator[LimitedCgroup]:
    """A child of this process's cgroup, or of the topmost one. NoCgroup: it cannot be made."""
    is_v1 = (root / _V1 / "memory.limit_in_bytes").exists()
    path = _parent(root, is_v1=is_v1) / f"memtide-test-{os.getpid()}"
    try:
        if not is_v1:
            (path.parent / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        path.mkdir()
    except OSError as error:
        raise NoCgroup(f"{path} cannot be made: {error.strerror}") from None
    try:
        group = LimitedCgroup(path, is_v1)
        try:
            group.limit(limit_bytes)
        except OSError as error:
            raise NoCgroup(f"{path} takes no limit: {error.strerror}") from None
        yield group
    finally:
        _end_processes(path)
        path.rmdir()


def _end_processes(path: Path) -> None:
    """Kills what is left in the cgroup and waits until it has ended: the daemon of a script that
    was killed, say, which still ends itself."""
    procs = path / "cgroup.procs"
    for pid in procs.read_text(encoding="ascii").split() if procs.exists() else []:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(int(pid))
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], _END_LIMIT_S)
            finally:
                os.close(process)


def _parent(root: Path, *, is_v1: bool) -> Path:
    if not is_v1:
        # A cgroup with processes of its own can limit no children, except the topmost one.
        return root / _V2
    lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = next((g for _, c, g in (line.split(":", 2) for line in lines) if c == "memory"), "/")
    return root / _V1 / own.lstrip("/")
