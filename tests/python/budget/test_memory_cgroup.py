"""The limit of a cgroup, of both versions, is read from the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from memtide._daemon.memory_budget import MemoryBudget, budget_of_cgroup, cgroup_leaves_bytes
from memtide._daemon.memory_cgroup import CgroupLimit, tightest_limit
from memtide._daemon.private_daemon import Pools

_GIB = 2**30


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: {8 * 2**20} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")
    return root


def version_1(root: Path) -> Path:
    group = "sys/fs/cgroup/memory/job/step"
    return write(
        root,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/job/step\n0::/",
            # The process has this path in another hierarchy.
            "sys/fs/cgroup/memory/other/memory.limit_in_bytes": 5,
            "sys/fs/cgroup/memory/other/memory.usage_in_bytes": 5,
            f"{group}/memory.limit_in_bytes": 9223372036854771712,
            f"{group}/memory.usage_in_bytes": _GIB,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 2 * _GIB,
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": _GIB,
            "sys/fs/cgroup/memory/job/memory.stat": (
                f"total_cache 9\ntotal_inactive_file {_GIB // 4}\ntotal_active_file {_GIB // 4}"
            ),
        },
    )


def version_2(root: Path) -> Path:
    group = "sys/fs/cgroup/job/step"
    return write(
        root,
        {
            "proc/self/cgroup": "0::/job/step",
            f"{group}/memory.max": "max",
            f"{group}/memory.current": _GIB,
            "sys/fs/cgroup/job/memory.max": 2 * _GIB,
            "sys/fs/cgroup/job/memory.current": _GIB,
            "sys/fs/cgroup/job/memory.stat": (
                f"anon 5\ninactive_file {_GIB // 4}\nactive_file {_GIB // 4}"
            ),
        },
    )


@pytest.mark.parametrize(
    ("version", "path"),
    [(version_1, "/sys/fs/cgroup/memory/job"), (version_2, "/sys/fs/cgroup/job")],
)
def test_a_parents_limit_holds_and_page_cache_is_not_used(
    version: object, path: str, tmp_path: Path
) -> None:
    assert callable(version)
    limit = tightest_limit(version(tmp_path))
    assert limit == CgroupLimit(path, limit_bytes=2 * _GIB, used_bytes=_GIB // 2)
    assert limit.free_bytes == 2 * _GIB - _GIB // 2


def test_names_of_files_that_the_kernel_keeps_are_not_used(tmp_path: Path) -> None:
    root = version_1(tmp_path / "1")
    kernel = root / "sys/fs/cgroup/memory/job/memory.kmem.usage_in_bytes"
    kernel.write_text(str(_GIB // 8), encoding="ascii")
    limit = tightest_limit(root)
    assert limit is not None
    assert limit.used_bytes == _GIB // 2 - _GIB // 8
    root = version_2(tmp_path / "2")
    with (root / "sys/fs/cgroup/job/memory.stat").open("a", encoding="ascii") as stat:
        stat.write(f"\nslab_reclaimable {_GIB // 8}")
    limit = tightest_limit(root)
    assert limit is not None
    assert limit.used_bytes == _GIB // 2 - _GIB // 8


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    (root / "sys/fs/cgroup/job/memory.max").write_text(str(8 * _GIB), encoding="ascii")
    assert tightest_limit(root) is None


def test_the_limit_that_leaves_least_counts(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    (root / "sys/fs/cgroup/job/step/memory.max").write_text(f"{_GIB + 5}", encoding="ascii")
    limit = tightest_limit(root)
    assert limit is not None
    assert (limit.path, limit.free_bytes) == ("/sys/fs/cgroup/job/step", 5)


def test_a_machine_without_cgroups_has_no_limit(tmp_path: Path) -> None:
    assert tightest_limit(write(tmp_path, {})) is None
    assert tightest_limit(tmp_path / "nothing") is None


def test_a_limit_is_the_budget_less_a_margin(tmp_path: Path) -> None:
    budget = budget_of_cgroup(Pools(), version_2(tmp_path))
    assert budget.host_bytes == 2 * _GIB - _GIB // 2 - 2 * _GIB // 16
    assert budget.host_source == "the limit of cgroup /sys/fs/cgroup/job"
    assert budget.device_bytes is None


def test_memory_that_the_process_has_already_is_in_its_budget(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    without_bytes = budget_of_cgroup(Pools(), root).host_bytes
    (root / "proc/self/status").write_text("RssAnon:\t  204800 kB\n", encoding="ascii")
    assert without_bytes is not None
    assert budget_of_cgroup(Pools(), root).host_bytes == without_bytes + 200 * 2**20
    # It was moved there with what it has, which is counted elsewhere.
    (root / "proc/self/status").write_text("RssAnon:\t 2048000 kB\n", encoding="ascii")
    assert budget_of_cgroup(Pools(), root).host_bytes == 2 * _GIB - 2 * _GIB // 16


def test_others_have_what_the_process_has_not_and_at_least_the_margin(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    assert cgroup_leaves_bytes(_GIB // 2, root) == 2 * _GIB - 2 * _GIB // 16
    assert cgroup_leaves_bytes(_GIB // 8, root) == 2 * _GIB - (_GIB // 2 - _GIB // 8)
    assert cgroup_leaves_bytes(_GIB, write(tmp_path / "other", {})) is None


def test_pools_that_are_asked_for_are_kept_and_have_no_budget(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    assert budget_of_cgroup(Pools(host_bytes=_GIB), root) == MemoryBudget()
    assert budget_of_cgroup(Pools(device_bytes=_GIB), root) == MemoryBudget()
    assert budget_of_cgroup(Pools(ssd_bytes=_GIB), root).named()


def test_a_limit_too_small_for_torch_is_no_budget(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    (root / "sys/fs/cgroup/job/memory.max").write_text(str(_GIB * 3 // 4), encoding="ascii")
    assert budget_of_cgroup(Pools(), root) == MemoryBudget()
