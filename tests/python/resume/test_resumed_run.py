"""`memtide run --job NAME --resume` continues training where a script was killed."""

from __future__ import annotations

import functools
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, short_directory
from memtide._daemon.private_daemon import Pools, PrivateDaemon

STEPS = 9
SCRIPT = SCRIPTS / "resumable.py"
# The most seconds from the end of the killed script to the end of the new one's first forward and
# backward pass, with Python's and torch's own start. The goal is 5 s plus a step, if idle.
PATIENCE_S = 60.0


_MIB = 2**20
_HOST = Pools(device="none", host_bytes=40 * _MIB, ssd_bytes=2**30)
_GPU = Pools(device="cuda", device_bytes=20 * _MIB, host_bytes=40 * _MIB, ssd_bytes=2**30)


@pytest.fixture(params=["host"])
def sockets(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The socket directory of a daemon that outlives scripts, without or with a GPU."""
    pools = {"host": _HOST, "gpu": _GPU}[request.param]
    if pools is _GPU:
        request.getfixturevalue("gpu")
    with short_directory() as home:
        pools = replace(pools, ssd_dir=tmp_path / "ssd")
        daemon = PrivateDaemon.start(pools, home)
        yield home
        daemon.stop()


def losses_of(path: Path) -> dict[int, str]:
    """The loss of each step; of a repeated step, the later one."""
    rows = [line.split() for line in path.read_text().splitlines()]
    for step, loss, _ in rows:
        again = {other for number, other, _ in rows if number == step}
        assert again == {loss}, f"step {step} was not the same again"
    return {int(step): loss for step, loss, _ in rows}


def test_a_script_in_another_pid_namespace_finds_its_own_job(
    sockets: Path, cli: Cli, tmp_path: Path
) -> None:
    """As in a container: the daemon knows the script by another pid than the script itself."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace is permitted here")
    trace = tmp_path / "run.trace.gz"
    flags = [f"--socket-dir={sockets}", "--job=one", "--chunk-size=2MiB", f"--trace={trace}"]
    for steps, resume in ((4, []), (8, ["--resume"])):
        script = cli.start_memtide(
            *("run", *flags, *resume, SCRIPT, steps), inside=inside, RESULT=tmp_path / "losses"
        )
        _, errors = script.communicate()
        assert script.returncode == 0, errors
        assert "no trace" not in errors
        assert ("job 'one' is resumed: 4 steps are done" in errors) == bool(resume)
        assert trace.exists()
        trace.unlink()


def run_script(cli: Cli, sockets: Path, result: Path, *more: str, **environment: object) -> int:
    outcome = cli.memtide(
        "run",
        f"--socket-dir={sockets}",
        "--job=one",
        "--chunk-size=2MiB",
        *more,
        SCRIPT,
        STEPS,
        RESULT=result,
        **environment,
    )
    assert outcome.status in (0, -9), outcome.err
    return outcome.status


@pytest.mark.parametrize(
    ("sockets", "environment"),
    [("host", {}), ("host", {"HALF": 1}), ("gpu", {})],
    ids=["fp32", "bf16 with masters", "gpu"],
    indirect=["sockets"],
)
def test_losses_go_on_after_kills_as_if_there_had_been_none(
    environment: dict[str, object], sockets: Path, cli: Cli, tmp_path: Path
) -> None:
    run = functools.partial(run_script, cli, sockets, **environment)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole) == 0
    expected = losses_of(whole)
    assert list(expected) == list(range(STEPS))
    rng = random.Random(1)
    for kill_at in (2, 4, 6):
        resume = ["--resume"] if kill_at > 2 else []
        delay = rng.uniform(0.0, 0.5)
        status = run(killed, *resume, KILL_AT=kill_at, KILL_AFTER_S=delay)
        assert status == -9
    died = time.time()
    assert run(killed, "--resume") == 0
    assert losses_of(killed) == expected
    first = min(
        float(t) for _, _, t in map(str.split, killed.read_text().splitlines()) if float(t) > died
    )
    assert first - died < PATIENCE_S


def test_a_job_that_nobody_resumes_begins_anew(sockets: Path, cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run_script(cli, sockets, first, KILL_AT=1, KILL_AFTER_S=5) == -9
    assert run_script(cli, sockets, second) == 0
    assert list(losses_of(second)) == list(range(STEPS))
    assert losses_of(first).items() <= losses_of(second).items()


def test_a_job_that_another_process_runs_is_refused(
    sockets: Path, cli: Cli, tmp_path: Path
) -> None:
    place = [f"--socket-dir={sockets}", "--job=one", "--chunk-size=2MiB", SCRIPT, STEPS]
    result = tmp_path / "result"
    with cli.start_memtide("run", *place, RESULT=result, KILL_AT=1, KILL_AFTER_S=3600) as first:
        while not result.exists():
            assert first.poll() is None, first.communicate()
        outcome = cli.memtide("run", "--resume", *place, RESULT=result)
        first.kill()
    assert outcome.status == 1
    assert f"process {first.pid} runs job 'one': end it first" in outcome.err


def test_resuming_needs_a_name_and_a_daemon(cli: Cli, tmp_path: Path) -> None:
    outcome = cli.memtide("run", "--resume", SCRIPT, STEPS)
    assert outcome.status == 2
    assert "--resume needs the name of a job: --job NAME" in outcome.err
    outcome = cli.memtide("run", "--job=a", f"--socket-dir={tmp_path}", SCRIPT, STEPS)
    assert outcome.status == 1
    assert "needs a daemon that does not end with this process" in outcome.err


@pytest.mark.parametrize("device", ["none", "cuda"])
def test_a_checkpoint_is_of_the_moment_at_which_it_was_asked_for(
    device: str, request: pytest.FixtureRequest, cli: Cli, tmp_path: Path
) -> None:
    if device == "cuda":
        request.getfixturevalue("gpu")
    outcome = cli.memtide(
        "run",
        f"--device={device}",
        *(["--device-pool=20MiB"] if device == "cuda" else []),
        "--host-pool=40MiB",
        "--ssd-pool=1GiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        SCRIPTS / "checkpointed.py",
        RESULT=tmp_path / "it.safetensors",
    ).check()
    assert outcome.out.splitlines() == ["asked False", "as it was"]
