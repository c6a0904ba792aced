"""A budget is divided into pools, and refused where it cannot hold."""

from __future__ import annotations

import pytest
from harness import Cli
from memtide._daemon.memory_budget import MemoryBudget, least_host_bytes
from memtide._daemon.private_daemon import Pools
from memtide.errors import UsageError

_MIB, _GIB = 2**20, 2**30


def test_pools_begin_with_a_part_of_what_torch_and_the_daemon_leave() -> None:
    budget = MemoryBudget(device_bytes=_GIB, host_bytes=2 * _GIB)
    pools = budget.divided(Pools(ssd_bytes=7, device="emulated"))
    left_bytes = 2 * _GIB - (352 + 16) * _MIB
    assert pools.host_bytes is not None
    assert pools.device_bytes is not None
    assert 0 <= left_bytes * 45 // 100 - pools.host_bytes < 2 * _MIB
    assert 0 <= _GIB * 45 // 100 - pools.device_bytes < 2 * _MIB
    assert pools.host_bytes % (2 * _MIB) == pools.device_bytes % (2 * _MIB) == 0
    assert (pools.ssd_bytes, pools.device) == (7, "emulated")
    assert pools.memory_limit_bytes == 2 * _GIB
    of_cgroup = MemoryBudget(host_bytes=2 * _GIB, host_source="the limit of X")
    assert of_cgroup.divided(Pools()).memory_limit_bytes is None, "the daemon finds it"


def test_without_a_limit_the_daemon_chooses_its_pools() -> None:
    assert MemoryBudget().divided(Pools()) == Pools()
    assert MemoryBudget(host_bytes=_GIB).divided(Pools()).device_bytes is None


def test_the_smallest_budget_has_the_smallest_pools() -> None:
    smallest = MemoryBudget(host_bytes=(352 + 16 + 48) * _MIB, device_bytes=48 * _MIB)
    smallest.check(Pools())
    pools = smallest.divided(Pools())
    assert pools.host_bytes == pools.device_bytes == 24 * _MIB


@pytest.mark.parametrize("used_mib", [300, 380, 500, 868, 5000])
def test_the_least_leaves_what_is_used_beside_its_own_pool(used_mib: int) -> None:
    least_bytes = least_host_bytes(used_mib * _MIB)
    pool_bytes = [
        MemoryBudget(host_bytes=bytes_).divided(Pools()).host_bytes or 0
        for bytes_ in (least_bytes, least_bytes - 4 * _MIB)
    ]
    assert used_mib * _MIB + pool_bytes[0] <= least_bytes
    assert used_mib * _MIB + pool_bytes[1] > least_bytes - 4 * _MIB


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--host-memory=2GiB", "--host-pool=1GiB"), "leave out --host-pool"),
        (("--device-memory=2GiB", "--device-pool=1GiB"), "leave out --device-pool"),
        (("--device-memory=2GiB", "--device=none"), "--device-memory needs a device"),
        (
            ("--host-memory=415MiB",),
            "--host-memory 415 MiB is too little for any script: the least is 416 MiB, that is "
            "368 MiB for torch and the daemon, and 48.0 MiB for",
        ),
        (("--device-memory=47MiB",), "the least is 48.0 MiB"),
        (("--host-memory=lots",), "'lots' is not a size"),
    ],
)
def test_what_cannot_hold_is_refused_before_anything_starts(
    flags: tuple[str, ...], message: str, cli: Cli
) -> None:
    done = cli.memtide("run", *flags, "train.py")
    assert done.status == 2
    assert message in done.err


def test_a_launcher_divides_no_budget(cli: Cli) -> None:
    done = cli.memtide("run", "--host-memory=2GiB", "torchrun", "--nproc-per-node=2", "train.py")
    assert done.status == 2
    assert "a launcher starts several" in done.err


def test_offload_refuses_the_same() -> None:
    with pytest.raises(UsageError, match="leave out --host-pool"):
        MemoryBudget(host_bytes=_GIB).check(Pools(host_bytes=_GIB))
