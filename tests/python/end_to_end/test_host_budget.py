"""When other programs take the machine's memory, the balloon inflates and training continues."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cli
from memtide._daemon import inspection
from stepping_script import SCRIPT, SteppingScript, node_daemon

_GIB = 2**30

# Allocates argv[1] bytes, and holds them until its standard input is closed.
_PROGRAM = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
for offset in range(0, len(memory), mmap.PAGESIZE):
    memory[offset] = 1
sys.stdin.read()
"""


def _available_bytes() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":") for line in text.splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


@pytest.fixture
def margin_bytes() -> int:
    """The bytes that other programs may take before the balloon must inflate: more than the tests
    that run at the same time take."""
    return min(3 * _GIB, _available_bytes() // 4)


@pytest.fixture
def sockets(tmp_path: Path, margin_bytes: int) -> Iterator[Path]:
    """The socket directory of a daemon whose balloon inflates when the margin is used up."""
    reserve_bytes = _available_bytes() - margin_bytes
    with node_daemon(tmp_path / "ssd", f"--host-reserve={reserve_bytes}") as sockets:
        yield sockets


def _ballooned_bytes(sockets: Path) -> int:
    (host,) = (pool for pool in inspection.inspect(sockets).pools if pool.tier == "host")
    return host.ballooned_bytes


def test_the_host_pool_gives_way_to_programs_and_comes_back(
    cli: Cli, sockets: Path, margin_bytes: int, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    run = SteppingScript(cli.start_memtide("run", f"--socket-dir={sockets}", SCRIPT, end))
    run.make_step()
    program = [sys.executable, "-c", _PROGRAM, str(margin_bytes * 5 // 3)]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as greedy:
        run.train_until(lambda: _ballooned_bytes(sockets) >= 24 << 20, "the balloon inflates")
        for _ in range(3):
            run.make_step()
        greedy.communicate()
    run.train_until(lambda: _ballooned_bytes(sockets) == 0, "the balloon deflates")
    end.touch()
    assert "The machine was short of memory" in run.end()
    assert run.losses == cli.python(SCRIPT, end, STEPS=len(run.losses)).check().out.split()
    assert inspection.inspect(sockets).counters["ballooned_bytes"] >= 24 << 20
