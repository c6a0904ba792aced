"""The cgroup of the tests has a limit and no swap, in both versions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from limited_cgroup import ENTER, LimitedCgroup, NoCgroup, _parent, limited_cgroup


def text(path: Path) -> str:
    return path.read_text(encoding="ascii")


def test_version_2_has_a_file_of_its_own_for_swap(tmp_path: Path) -> None:
    (tmp_path / "memory.swap.max").touch()
    LimitedCgroup(tmp_path, is_v1=False).limit(4096)
    assert (text(tmp_path / "memory.max"), text(tmp_path / "memory.swap.max")) == ("4096", "0")
    assert _parent(tmp_path, is_v1=False) == tmp_path / "sys/fs/cgroup"


def test_version_1_counts_swap_with_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.memsw.limit_in_bytes").touch()
    LimitedCgroup(tmp_path, is_v1=True).limit(4096)
    assert text(tmp_path / "memory.memsw.limit_in_bytes") == "4096"
    assert text(tmp_path / "memory.limit_in_bytes") == "4096"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("7:cpu:/a\n4:memory:/b/c\n0::/\n", encoding="ascii")
    assert _parent(tmp_path, is_v1=True) == tmp_path / "sys/fs/cgroup/memory/b/c"


def test_what_is_left_in_it_ends_with_it() -> None:
    wait = ("-c", "import sys; print('in', flush=True); sys.stdin.read()")
    try:
        with limited_cgroup(256 << 20) as cgroup:
            read_end, write_end = os.pipe()
            left = subprocess.Popen(
                [sys.executable, "-c", ENTER, cgroup.path, *wait],
                stdin=read_end,
                stdout=subprocess.PIPE,
            )
            assert left.stdout is not None
            assert left.stdout.readline() == b"in\n"
    except NoCgroup as reason:
        pytest.skip(str(reason))
    assert not cgroup.path.exists()
    os.close(read_end)
    os.close(write_end)
    left.stdout.close()
    assert left.wait() == -signal.SIGKILL


def test_where_there_is_none_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoCgroup, match="cannot be made: No such file"), limited_cgroup(1, tmp_path):
        pass
