"""The machine ends while a script trains in a durable job; `--resume` continues it after the next
start, from the last step that was on stable storage."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, short_directory
from memtide._capi.locate import find_daemon
from memtide._daemon import inspection
from reference_runs import ReferenceRuns
from service_manager import ServiceManager

STEPS = 8
PATIENCE_S = 120


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    ssd = [f"--ssd-dir={tmp_path / 'ssd'}", f"--ssd-dir={tmp_path / 'other'}", "--ssd-pool=1GiB"]
    with short_directory() as home:
        started = ServiceManager(
            home, ["--device=none", "--host-pool=40MiB", *ssd, "--metrics-address=off"]
        )
        started.start()
        yield started
        started.close()


def restored_job(manager: ServiceManager) -> inspection.Job:
    """The only job of the daemon, which restores it a moment after it answers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if jobs := inspection.inspect(manager.home, sessions=True).jobs:
            [job] = jobs
            return job
    raise AssertionError("the daemon restores no job")


def steps_of(path: Path) -> list[tuple[int, str]]:
    """The steps whose losses were written, in order, with the loss."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), loss) for step, loss, _ in rows]


@pytest.mark.parametrize("every", [1, 3])
def test_training_goes_on_after_the_machine_ended(
    every: int,
    manager: ServiceManager,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    def command(*more: str) -> list[object]:
        place = [f"--socket-dir={manager.home}", "--chunk-size=2MiB"]
        return ["run", *place, *more, SCRIPTS / "resumable.py", STEPS]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    cli.memtide(*command(), RESULT=whole).check()
    expected = steps_of(whole)
    assert len(expected) == STEPS
    written: list[tuple[int, str]] = []
    went_on_from = 0
    for steps in (4, 2):
        more = ["--resume"] if written else []
        durable = ["--job=one", f"--durable-every={every}", *more]
        with cli.start_memtide(*command(*durable), RESULT=cut) as script:
            while len(steps_of(cut)) < len(written) + steps:
                assert script.poll() is None, script.communicate()
            manager.kill()
            script.communicate(timeout=PATIENCE_S)
        manager.forget()
        manager.start()
        job = restored_job(manager)
        now = steps_of(cut)
        # The loss of a step is written before the step, and after the last one was committed.
        made = now[-1][0]
        assert made - made % every <= job.durable_step <= made + 1
        assert (job.durable_every, job.durable_step % every) == (every, 0)
        if written:
            assert now[len(written)][0] == went_on_from
        written, went_on_from = now, job.durable_step
    listed = cli.memtide("admin", "list", f"--socket-dir={manager.home}")
    [heads, row] = listed.check().out.splitlines()
    assert heads.split()[-3:] == ["durable", "to", "processes"]
    assert row.split()[-2:] == ["step", str(went_on_from)]
    cli.memtide(*command("--job=one", "--resume"), RESULT=cut).check()
    assert steps_of(cut)[len(written)][0] == went_on_from
    assert dict(steps_of(cut)) == dict(expected)
    assert set(steps_of(cut)) == set(expected)


def test_a_job_that_is_ended_leaves_nothing_on_the_ssd(
    manager: ServiceManager, cli: Cli, tmp_path: Path
) -> None:
    place = [f"--socket-dir={manager.home}", "--chunk-size=2MiB", "--job=one", "--durable"]
    cli.memtide("run", *place, SCRIPTS / "resumable.py", 2, RESULT=tmp_path / "losses").check()
    names = [path.name for ssd in ("ssd", "other") for path in (tmp_path / ssd).iterdir()]
    assert sum(name.startswith(".memtide-snapshot-") for name in names) == 1
    assert sum(name.startswith(".memtide-store-") for name in names) >= 2
    cli.memtide("admin", "end", f"--socket-dir={manager.home}", "one").check()
    left = {path.name for ssd in ("ssd", "other") for path in (tmp_path / ssd).iterdir()}
    assert not {name for name in left if name.startswith((".memtide-snapshot-", ".memtide-store-"))}


def test_a_daemon_that_ends_between_the_names_and_the_snapshot(
    manager: ServiceManager, cli: Cli, tmp_path: Path
) -> None:
    """The next daemon has the job by its descriptors, and can save it."""
    place = [f"--socket-dir={manager.home}", "--chunk-size=2MiB", "--job=one", "--durable"]

    def run(steps: int, *more: str) -> None:
        script = [*more, SCRIPTS / "resumable.py", steps]
        cli.memtide("run", *place, *script, RESULT=tmp_path / "losses").check()

    run(2)
    [snapshot] = (tmp_path / "ssd").glob(".memtide-snapshot-*")
    manager.kill()
    snapshot.unlink()
    manager.start()
    run(4, "--resume")
    assert [step for step, _ in steps_of(tmp_path / "losses")] == [0, 1, 2, 3]
    assert snapshot.exists()
    manager.kill()
    manager.forget()
    manager.start()
    job = restored_job(manager)
    assert job.durable_step == 4


def test_a_start_with_other_directories_is_refused_and_loses_no_job(
    manager: ServiceManager, cli: Cli, tmp_path: Path
) -> None:
    place = [f"--socket-dir={manager.home}", "--chunk-size=2MiB", "--job=one", "--durable"]
    cli.memtide("run", *place, SCRIPTS / "resumable.py", 2, RESULT=tmp_path / "losses").check()
    manager.kill()
    manager.forget()
    ssd, other, new, away = (tmp_path / name for name in ("ssd", "other", "new", "away"))

    def refused(*directories: Path) -> tuple[int, str]:
        command = [str(find_daemon()), f"--socket-dir={manager.home}", "--device=none"]
        command += ["--host-pool=40MiB", "--ssd-pool=1GiB", "--metrics-address=off"]
        command += [f"--ssd-dir={directory}" for directory in directories]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return ended.returncode, ended.stderr

    for directories in ([other, ssd], [new, ssd, other], [ssd, other, new], [ssd], [other]):
        status, log = refused(*directories)
        assert status == 2
        assert f"Start with --ssd-dir={ssd} --ssd-dir={other}. " in log
    # The drive is not mounted yet, which the next start may find mended.
    ssd.rename(away)
    status, log = refused(ssd, other)
    assert status == 1
    assert "Is a drive not mounted yet?" in log
    shutil.rmtree(ssd)
    away.rename(ssd)
    manager.start()
    assert restored_job(manager).durable_step == 2


@pytest.mark.parametrize("every", [1, 2])
def test_ranks_go_on_from_one_step_after_the_machine_ended(
    every: int,
    manager: ServiceManager,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    script = (SCRIPTS / "resumable_ranks.py", STEPS)
    torchrun = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    plain = reference_runs.result(script[0], STEPS, ranks=2)
    cut = tmp_path / "cut"

    def command(*more: object) -> list[object]:
        place = [f"--socket-dir={manager.home}", "--job=one", "--chunk-size=2MiB"]
        return ["run", *place, *more, "torchrun", *torchrun, *script]

    waits = {"WAIT_AT": 3, "WAIT_FOR": tmp_path / "never"}
    with cli.start_memtide(*command(f"--durable-every={every}"), RESULT=cut, **waits) as ranks:
        while any(len(losses_of_rank(cut, rank)) < 4 for rank in range(2)):
            assert ranks.poll() is None, ranks.communicate()
        manager.kill()
        ranks.communicate(timeout=PATIENCE_S)
    manager.forget()
    manager.start()
    assert restored_job(manager).durable_step == 3 - 3 % every
    cli.memtide(*command("--resume"), RESULT=cut).check()
    for rank in range(2):
        lines = Path(f"{cut}{rank}").read_text(encoding="utf-8").splitlines()
        starts = [line for line in lines if line.startswith("start")]
        assert starts[-1] == f"start {3 - 3 % every}"
        expected = losses_of_rank(plain, rank)
        assert len(expected) == STEPS
        assert losses_of_rank(cut, rank) == expected


def losses_of_rank(result: Path, rank: int) -> set[str]:
    """The lines of the steps, with a step's loss: one for each step whose loss was always equal."""
    path = Path(f"{result}{rank}")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line for line in lines if not line.startswith("start")}
