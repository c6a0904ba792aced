"""`memtide idle`: what a restart of the daemon would end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cli, short_directory
from memtide._capi import admin
from memtide._capi.client import Client, Kind
from memtide._capi.library import Options
from memtide._cli.idle import print_what_would_end
from memtide._daemon.private_daemon import Pools, PrivateDaemon


@pytest.fixture
def daemon() -> Iterator[PrivateDaemon]:
    pools = Pools(host_bytes=16 << 20, ssd_bytes=64 << 20, device="none")
    with short_directory() as sockets:
        daemon = PrivateDaemon.start(pools, sockets)
        yield daemon
        daemon.stop()


def idle(cli: Cli, daemon: PrivateDaemon, tmp_path: Path) -> tuple[int, str]:
    """The exit status and output, in a Python that has no other packages, as the package's scripts
    run it."""
    for name in ("rich", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')\n")
    more = {"PYTHONPATH": f"{cli.environment({})['PYTHONPATH']}:{tmp_path}"}
    done = cli.memtide("idle", f"--socket-dir={daemon.socket_dir}", **more)
    assert done.err == ""
    return done.status, done.out


def test_it_tells_sessions_from_jobs_that_wait(
    cli: Cli, daemon: PrivateDaemon, tmp_path: Path
) -> None:
    nothing = (0, "idle: no session is open, and no job waits\n")
    assert idle(cli, daemon, tmp_path) == nothing
    named = {"job_name": "\u202eone", "time_to_live_s": 100}
    client = Client(Options(socket_dir=daemon.socket_dir, chunk_bytes=2 << 20, **named))
    client.allocate(Kind.PARAMETER, 3)
    status, output = idle(cli, daemon, tmp_path)
    assert status == 3
    assert output.startswith(r"1 session is open: job '\u202eone' of uid ")
    client.close()
    waiting = (4, "3 chunks of jobs wait for a script that resumes them\n")
    assert idle(cli, daemon, tmp_path) == waiting


def test_sessions_of_other_users_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = {"job_name": "mine", "uid": 7, "pid": 8}
    node = {"sessions": [own], "session_count": 3}
    monkeypatch.setattr(admin, "inspect_node", lambda *_, **__: node)
    assert print_what_would_end(tmp_path) == 3
    expected = "3 sessions are open: job 'mine' of uid 7, process 8, 2 more\n"
    assert capsys.readouterr().out == expected


def test_without_a_daemon_it_fails_and_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli.memtide("idle", f"--socket-dir={tmp_path}")
    assert (done.status, done.out) == (1, "")
    assert f"no daemon at {tmp_path}" in done.err
