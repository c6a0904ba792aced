"""The cgroup of the tests has a limit and no swap, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from limited_cgroup import NoCgroup, _limit, _parent, limited_cgroup


def text(path: Path) -> str:
    return path.read_text(encoding="ascii")


def test_version_2_has_a_file_of_its_own_for_swap(tmp_path: Path) -> None:
    (tmp_path / "memory.swap.max").touch()
    _limit(tmp_path, 4096, is_v1=False)
    assert (text(tmp_path / "memory.max"), text(tmp_path / "memory.swap.max")) == ("4096", "0")
    assert _parent(tmp_path, is_v1=False) == tmp_path / "sys/fs/cgroup"


def test_version_1_counts_swap_with_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.memsw.limit_in_bytes").touch()
    _limit(tmp_path, 4096, is_v1=True)
    assert text(tmp_path / "memory.memsw.limit_in_bytes") == "4096"
    assert text(tmp_path / "memory.limit_in_bytes") == "4096"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("7:cpu:/a\n4:memory:/b/c\n0::/\n", encoding="ascii")
    assert _parent(tmp_path, is_v1=True) == tmp_path / "sys/fs/cgroup/memory/b/c"


def test_where_there_is_none_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoCgroup, match="cannot be made: No such file"), limited_cgroup(1, tmp_path):
        pass
