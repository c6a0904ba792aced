"""The machine's memory, and the limit of this process's control group (cgroup), of version 1 or
2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Interface:
    """The files of one version of cgroups."""

    mount: str
    limit: str
    usage: str
    cache: tuple[str, ...]  # Keys of memory.stat: page cache, which the kernel reclaims.
    kernel: str = ""  # The kernel's memory for the processes, most of it caches of files' names.


_V1 = _Interface(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
    "memory.kmem.usage_in_bytes",
)
_V2 = _Interface(
    "sys/fs/cgroup",
    "memory.max",
    "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"),
)


@dataclass(frozen=True)
class CgroupLimit:
    """The memory that a cgroup leaves to this process and to those that it starts."""

    path: str  # As it is mounted: "/sys/fs/cgroup/memory/job".
    limit_bytes: int
    used_bytes: int  # By all processes of the cgroup, page cache left out.

    @property
    def free_bytes(self) -> int:
        """The bytes that are left of the limit."""
        return max(0, self.limit_bytes - self.used_bytes)


def tightest_limit(root: Path = Path("/")) -> CgroupLimit | None:
    """The limit that leaves least, of this process's cgroup or of one above it. None: there is no
    limit below the machine's memory. `root` is the parent of /proc and /sys, which tests replace.
    """
    most = _number_after("MemTotal:", root / "proc/meminfo")
    if most is None:
        return None
    limits = [
        limit
        for interface, group in _groups(root)
        for limit in _limits_of(root, interface, group)
        if limit.limit_bytes < most * 1024
    ]
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def own_bytes(root: Path = Path("/")) -> int:
    """Anonymous memory of this process. `root`: as in `tightest_limit`."""
    status = root / "proc/self/status"
    return (_number_after("RssAnon:", status) or 0) * 1024


def machine_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """The machine's memory, and what new programs would have of it without swapping. `root`: as in
    `tightest_limit`."""
    meminfo = root / "proc/meminfo"
    total, available = (_number_after(f"Mem{name}:", meminfo) for name in ("Total", "Available"))
    return (total or 0) * 1024, (available or 0) * 1024


def _groups(root: Path) -> list[tuple[_Interface, Path]]:
    # Lines are "0::/path" for version 2, and "9:memory:/path" or "9:cpu,memory:/path" for 1.
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3 or (fields[1] and "memory" not in fields[1].split(",")):
            continue
        groups.append((_V1 if fields[1] else _V2, Path(fields[2])))
    return groups


def _limits_of(root: Path, interface: _Interface, group: Path) -> list[CgroupLimit]:
    limits = []
    # A limit of any parent holds, too.
    for path in (group, *group.parents):
        mounted = Path(interface.mount) / path.relative_to("/")
        limit, usage = (
            _text(root / mounted / name).strip() for name in (interface.limit, interface.usage)
        )
        if not limit.isdecimal() or not usage.isdecimal():  # Missing, or "max".
            continue
        stat = root / mounted / "memory.stat"
        cache = sum(_number_after(key, stat) or 0 for key in interface.cache)
        if interface.kernel:
            kernel = _text(root / mounted / interface.kernel).strip()
            cache += int(kernel) if kernel.isdecimal() else 0
        limits.append(CgroupLimit(f"/{mounted}", int(limit), max(0, int(usage) - cache)))
    return limits


def _number_after(key: str, path: Path) -> int | None:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key:
            return int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # This machine has no such file.
        return ""
