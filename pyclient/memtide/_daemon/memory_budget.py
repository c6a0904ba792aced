"""The budget of a process and its private daemon together, and its division into pools.

The rest of a budget, beside the pools, is the script's own: torch and the framework, activations,
gradients before they are adopted, workspaces. memtide keeps activations only as far as there is
room for them (_activations/budget.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from memtide._daemon.memory_cgroup import own_bytes, tightest_limit
from memtide._daemon.private_daemon import Pools
from memtide._util.sizes import format_size
from memtide.errors import UsageError

# Anonymous memory of a process that has imported torch and made an optimizer (349 MiB with torch
# 2.12), and of a daemon without slots (under 16 MiB). Measured values replace them in the run.
_TORCH_BYTES = 352 * 2**20
_DAEMON_BYTES = 16 * 2**20
# The part of what these leave that pools begin with, in percent. It is the balloon's to make the
# host pool smaller than that, and the plan's to divide a device otherwise.
_POOL_PERCENT = 45
_SLOT_BYTES = 2 * 2**20
# The slots that a job's largest call, a step part, may need at once.
_LEAST_SLOTS = 12
# The part of a cgroup's limit that is left for what no process's memory shows: page tables,
# sockets, and pages of files that are being written.
_MARGIN = 16
_HOST_FLAG, _DEVICE_FLAG = "--host-memory", "--device-memory"


@dataclass(frozen=True)
class MemoryBudget:
    """The memory that one process and its daemon may use together. None: as much as there is."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    host_source: str = _HOST_FLAG  # The setting that `host_bytes` is from.
    # The number of processes of the training that share free memory where no limit is set: of their
    # GPU, if they have one. 0: the limits above hold, or none.
    sharing_what_is_free: int = 0

    @property
    def is_of_cgroup(self) -> bool:
        """Whether `host_bytes` is what a cgroup's limit leaves, and no flag's value."""
        return self.host_bytes is not None and self.host_source != _HOST_FLAG

    def named(self) -> bool:
        """Whether there is any limit."""
        return self.device_bytes is not None or self.host_bytes is not None

    def check(self, pools: Pools) -> None:
        """UsageError: a pool of the same memory has a size, or the budget is too small for any
        script."""
        for bytes_, flag, pool, pool_flag in (
            (self.device_bytes, _DEVICE_FLAG, pools.device_bytes, "--device-pool"),
            (self.host_bytes, _HOST_FLAG, pools.host_bytes, "--host-pool"),
        ):
            if bytes_ is not None and pool is not None:
                raise UsageError(
                    f"{flag} is a limit on all that the script and memtide use, and the pool is a "
                    f"part of it that memtide chooses: leave out {pool_flag}"
                )
        if self.device_bytes is not None:
            if pools.device == "none":
                raise UsageError(f"{_DEVICE_FLAG} needs a device, and --device is none")
            _check_least(_DEVICE_FLAG, self.device_bytes, 0)
        if self.host_bytes is not None:
            _check_least(self.host_source, self.host_bytes, _TORCH_BYTES + _DAEMON_BYTES)

    def divided(self, pools: Pools) -> Pools:
        """`pools`, with those that a limit covers as large as they begin."""
        if self.device_bytes is not None:
            pools = replace(pools, device_bytes=_pool_bytes(self.device_bytes))
        if self.host_bytes is not None:
            left_bytes = self.host_bytes - _TORCH_BYTES - _DAEMON_BYTES
            pools = replace(pools, host_bytes=_pool_bytes(left_bytes))
            if not self.is_of_cgroup:  # The daemon finds a cgroup's limit itself.
                pools = replace(pools, memory_limit_bytes=self.host_bytes)
        return pools


def budget_of_cgroup(pools: Pools, root: Path = Path("/")) -> MemoryBudget:
    """The budget that the limit of this process's cgroup sets: less what others there have, and
    less a margin. Without a limit, or where `pools` has sizes of memory, an empty one. `root`: as
    in `tightest_limit`."""
    limit = tightest_limit(root)
    if limit is None or pools.host_bytes is not None or pools.device_bytes is not None:
        return MemoryBudget()
    # Memory that the process has already is a part of its budget.
    left_bytes = min(limit.limit_bytes, limit.free_bytes + own_bytes(root))
    host_bytes = left_bytes - limit.limit_bytes // _MARGIN
    if host_bytes < _least_bytes(_TORCH_BYTES + _DAEMON_BYTES):
        return MemoryBudget()  # The script may need no torch, and the daemon checks its own needs.
    return MemoryBudget(host_bytes=host_bytes, host_source=f"the limit of cgroup {limit.path}")


def cgroup_leaves_bytes(used_bytes: int, root: Path = Path("/")) -> int | None:
    """The bytes that the limit of this process's cgroup leaves to it and its daemon now, which
    use `used_bytes`. None: there is no limit any more. `root`: as in `tightest_limit`."""
    limit = tightest_limit(root)
    if limit is None:
        return None
    # Page tables and what is being written are among what others use, and in the margin.
    others_bytes = limit.used_bytes - used_bytes
    return limit.limit_bytes - max(others_bytes, limit.limit_bytes // _MARGIN)


def least_host_bytes(used_bytes: int) -> int:
    """The smallest `--host-memory` that leaves `used_bytes` beside the pool that it begins with."""
    expected_bytes = _TORCH_BYTES + _DAEMON_BYTES
    least_bytes = -(-(used_bytes * 100 - expected_bytes * _POOL_PERCENT) // (100 - _POOL_PERCENT))
    return max(least_bytes, used_bytes + _LEAST_SLOTS * _SLOT_BYTES)


def _pool_bytes(left_bytes: int) -> int:
    pool_bytes = left_bytes * _POOL_PERCENT // 100 // _SLOT_BYTES * _SLOT_BYTES
    return max(pool_bytes, _LEAST_SLOTS * _SLOT_BYTES)


def _least_bytes(other_bytes: int) -> int:
    # At least as much as the smallest pool is left for the script.
    return other_bytes + 2 * _LEAST_SLOTS * _SLOT_BYTES


def _check_least(flag: str, bytes_: int, other_bytes: int) -> None:
    least_bytes = _least_bytes(other_bytes)
    if bytes_ >= least_bytes:
        return
    other = f"{format_size(other_bytes)} for torch and the daemon, and " if other_bytes else ""
    raise UsageError(
        f"{flag} {format_size(bytes_)} is too little for any script: the least is "
        f"{format_size(least_bytes)}, that is {other}{format_size(least_bytes - other_bytes)} for "
        "the smallest pool and what the script keeps beside it"
    )
