"""Describes the machine that a run was made on, and measures how busy it was."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SHMEM_POLICY = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def memory_info(key: str) -> int:
    """A value of /proc/meminfo, in kB or a plain number; 0 where the kernel does not have it."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    return 0


def busy_seconds() -> float:
    """CPU time that all processes have used since boot."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(process: int) -> float:
    """CPU time of one process so far."""
    user, system = _stat(process)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class LoadBesideChildren:
    """CPU time of all processes but this one and its ended children, from construction on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._used_by_others()

    def of_others(self) -> float:
        """The mean number of CPUs in use since construction. All children must have ended."""
        used = self._used_by_others() - self._before
        return max(0.0, used / (time.monotonic() - self._began))

    @staticmethod
    def _used_by_others() -> float:
        ours = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return busy_seconds() - sum(usage.ru_utime + usage.ru_stime for usage in ours)


class Load:
    """CPU time of all processes but `ours`, from construction on.

    `ours` must live until of_others is called.
    """

    def __init__(self, ours: Sequence[int]) -> None:
        self._ours = ours
        self._began = time.monotonic()
        self._before = self._used_by_others()

    def of_others(self) -> float:
        """The mean number of CPUs in use since construction."""
        used = self._used_by_others() - self._before
        return max(0.0, used / (time.monotonic() - self._began))

    def _used_by_others(self) -> float:
        return busy_seconds() - sum(cpu_seconds_of(process) for process in self._ours)


def our_processes() -> list[int]:
    """This process and all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # The process may have just ended.
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sorted(ours)


def _stat(process: int) -> list[str]:
    # The process name, in parentheses, may contain spaces.
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def pages() -> str:
    """The page size of pools on this machine, chosen as base/shared_memory.h chooses it."""
    if memory_info("HugePages_Free") > 0:
        return f"{memory_info('HugePages_Free')} reserved huge pages, then others"
    policy = _SHMEM_POLICY.read_text(encoding="ascii") if _SHMEM_POLICY.exists() else ""
    return "pages of 4 KiB" if not policy or "[never]" in policy else "transparent huge pages"


def describe(root: Path) -> dict[str, Any]:
    """The properties of the machine that must be known to compare two runs."""
    commit = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_info("MemTotal") / 2**20, 1),
        "kernel": platform.release(),
        "pages": pages(),
        "commit": commit,
    }
