"""Several scripts on one node's daemon share its memory, and give the results of each alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cli
from memtide._daemon import inspection
from stepping_script import SCRIPT, SteppingScript, node_daemon

_POOL_BYTES = 64 << 20
# The guaranteed share of a job in host memory: a dozen chunks.
_GUARANTEED_BYTES = 24 << 20


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    with node_daemon(tmp_path / "ssd", "--no-host-reserve") as sockets:
        yield sockets


def _share_bytes(sockets: Path, run: SteppingScript) -> int:
    """The bytes of host memory that the script's job may have now."""
    (share,) = (
        int(session.get("host_share_bytes", 0))
        for session in inspection.inspect(sockets, sessions=True).sessions
        if session["pid"] == run.script.pid
    )
    return share


def test_two_scripts_share_the_pool(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    ends = [tmp_path / "first", tmp_path / "second"]
    first, second = runs = [
        SteppingScript(cli.start_memtide("run", f"--socket-dir={sockets}", SCRIPT, end))
        for end in ends
    ]
    for run in runs:
        run.make_step()

    def both_have_half() -> bool:
        return all(_share_bytes(sockets, run) == _POOL_BYTES // 2 for run in runs)

    def make_steps_until_both_have_half() -> bool:
        second.make_step()
        return both_have_half()

    first.train_until(make_steps_until_both_have_half, "half of the pool for each")
    assert inspection.inspect(sockets).counters["host_reclaimed_bytes"] >= _POOL_BYTES // 2
    ends[1].touch()
    second.end()
    first.train_until(
        lambda: _share_bytes(sockets, first) >= _POOL_BYTES * 5 // 8, "more than half for one alone"
    )
    ends[0].touch()
    first.end()
    for run, end in zip(runs, ends, strict=True):
        assert run.losses == cli.python(SCRIPT, end, STEPS=len(run.losses)).check().out.split()


def test_a_job_that_waits_to_be_resumed_lends_its_memory(
    cli: Cli, sockets: Path, tmp_path: Path
) -> None:
    cli.memtide("run", f"--socket-dir={sockets}", "--job=kept", SCRIPT, os.devnull, STEPS=5).check()
    (host,) = (pool for pool in inspection.inspect(sockets).pools if pool.tier == "host")
    assert host.free_bytes == 0
    assert host.obtainable_bytes == _POOL_BYTES - _GUARANTEED_BYTES
    status = cli.memtide("status", f"--socket-dir={sockets}").check().out
    assert "a further job can have 40.0 MiB host, 896 MiB ssd" in status
    end = tmp_path / "end"
    run = SteppingScript(cli.start_memtide("run", f"--socket-dir={sockets}", SCRIPT, end))
    run.train_until(
        lambda: _share_bytes(sockets, run) == _POOL_BYTES - _GUARANTEED_BYTES,
        "all but the other job's guaranteed share",
    )
    end.touch()
    run.end()
