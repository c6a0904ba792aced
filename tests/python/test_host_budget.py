"""Programs that take the machine's memory: the host pool gives way, and training goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, short_directory
from memtide import node as nodes
from memtide.daemon import answers
from memtide.locate import find_daemon

_GIB = 2**30
_PATIENCE_S = 120.0
_SCRIPT = SCRIPTS / "squeezed.py"

# Takes as many bytes as it is told to, says so, and keeps them until it is told to end.
_PROGRAM = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
for offset in range(0, len(memory), mmap.PAGESIZE):
    memory[offset] = 1
print("taken", flush=True)
sys.stdin.read()
"""


def _available_bytes() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":") for line in text.splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


@pytest.fixture
def margin_bytes() -> int:
    """What programs may take beside the test before the daemon must give way: more than the tests
    that run meanwhile do."""
    return min(3 * _GIB, _available_bytes() // 4)


@pytest.fixture
def sockets(tmp_path: Path, margin_bytes: int) -> Iterator[Path]:
    """Where a daemon listens, whose chunks give way when the margin is used up."""
    with short_directory() as home:
        flags = [
            f"--socket-dir={home}",
            f"--ssd-dir={tmp_path / 'ssd'}",
            "--ssd-pool=1GiB",
            "--host-pool=64MiB",
            "--device=none",
            "--metrics-address=off",
            f"--host-reserve={_available_bytes() - margin_bytes}",
        ]
        with subprocess.Popen([find_daemon(), *flags], stderr=subprocess.DEVNULL) as daemon:
            while not answers(home):
                assert daemon.poll() is None, "the daemon does not start"
            yield home
            daemon.terminate()


def _withheld_bytes(sockets: Path) -> int:
    (host,) = (pool for pool in nodes.inspect(sockets).pools if pool.tier == "host")
    return host.withheld_bytes


def _wait_until(seen: Callable[[], bool], what: str, script: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not seen():
        assert script.poll() is None, f"the script ended before {what}: {script.communicate()}"
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.05)  # tidy(sleep): the daemon is asked, it tells nobody.


@pytest.mark.parametrize("exact", [False, True], ids=["steps by the daemon", "exact"])
def test_the_host_pool_gives_way_to_programs_and_comes_back(
    exact: bool, cli: Cli, sockets: Path, margin_bytes: int, tmp_path: Path
) -> None:
    squeezed, unsqueezed, end = (tmp_path / name for name in ("squeezed", "unsqueezed", "end"))
    flags = ["--exact"] if exact else []
    script = cli.start_memtide("run", f"--socket-dir={sockets}", *flags, _SCRIPT, squeezed, end)
    _wait_until(squeezed.exists, "an iteration", script)
    program = [sys.executable, "-c", _PROGRAM, str(margin_bytes * 5 // 3)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as greedy:
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == "taken\n"
        _wait_until(lambda: _withheld_bytes(sockets) >= 24 << 20, "memory given way", script)
        steps = len(_losses(squeezed))
        _wait_until(lambda: len(_losses(squeezed)) > steps + 2, "training going on", script)
        greedy.communicate()
    _wait_until(lambda: _withheld_bytes(sockets) == 0, "memory come back", script)
    end.touch()
    out, err = script.communicate(timeout=_PATIENCE_S)
    assert script.returncode == 0, f"{out}\n{err}"
    assert "The machine was short of memory" in err
    losses = _losses(squeezed)
    again = (_SCRIPT, unsqueezed, end)
    if exact:
        cli.python(*again, STEPS=len(losses)).check()
    else:
        cli.memtide("run", "--host-pool=64MiB", *again, STEPS=len(losses)).check()
    assert losses == _losses(unsqueezed)
    assert nodes.inspect(sockets).counters["withheld_bytes"] >= 24 << 20


def _losses(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split()
