"""Ranks under `memtide run --job NAME` commit together, and go on from there however they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, Outcome, short_directory
from reference_runs import ReferenceRuns
from service_manager import ServiceManager
from stepping_script import node_daemon

STEPS = 6
SCRIPT = SCRIPTS / "resumable_ranks.py"
_WRITE_USAGE = Path(__file__).resolve().parents[1] / "testing" / "write_usage.py"
_TORCHRUN = ["torchrun", "--standalone", "--local-addr=127.0.0.1", "--monitor-interval=0.1"]


@pytest.fixture
def sockets(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A daemon without a device, or with those that a test asks for."""
    device = getattr(request, "param", "none")
    pools = [] if device == "none" else ["--device-pool=64MiB"]
    with node_daemon(
        tmp_path / "ssd", "--no-host-reserve", *pools, host_pool="384MiB", device=device
    ) as sockets:
        yield sockets


def run(cli: Cli, sockets: Path, result: Path, *more: object, **environment: object) -> Outcome:
    """Runs ranks of the job, by default two of torchrun's."""
    options = [f"--socket-dir={sockets}", "--job=one", "--chunk-size=2MiB"]
    return cli.memtide("run", *options, *more, SCRIPT, STEPS, RESULT=result, **environment)


def torchrun(restarts: int = 0) -> list[str]:
    return [*_TORCHRUN, "--nproc-per-node=2", f"--max-restarts={restarts}"]


def losses_of(result: Path, rank: int) -> dict[int, str]:
    """The loss of each step; asserts that a repeated step has the same loss."""
    losses: dict[int, str] = {}
    for line in Path(f"{result}{rank}").read_text(encoding="utf-8").splitlines():
        step, loss = line.split()
        if step != "start":
            assert losses.setdefault(int(step), loss) == loss, f"step {step} was not the same again"
    return losses


def starts_of(result: Path, rank: int) -> list[int]:
    """The steps at which a rank began."""
    lines = Path(f"{result}{rank}").read_text(encoding="utf-8").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("start")]


def plain(reference_runs: ReferenceRuns) -> list[dict[int, str]]:
    """The losses of each rank without memtide and without a kill."""
    result = reference_runs.result(SCRIPT, STEPS, ranks=2)
    losses = [losses_of(result, rank) for rank in range(2)]
    assert list(losses[0]) == list(range(STEPS))
    return losses


@pytest.mark.parametrize("sockets", ["none", "emulated:2"], indirect=True)
@pytest.mark.parametrize(
    ("kills", "delay"),
    [
        (["3:1"], 0.0),
        pytest.param(["2:0", "4:1", "5:0"], 0.01, marks=pytest.mark.long),
        pytest.param(["0:0", "1:1", "3:0"], 0.05, marks=pytest.mark.long),
    ],
)
def test_ranks_that_torchelastic_starts_anew_go_on_from_one_step(
    kills: list[str],
    delay: float,
    cli: Cli,
    reference_runs: ReferenceRuns,
    sockets: Path,
    tmp_path: Path,
) -> None:
    result = tmp_path / "ours"
    command = torchrun(len(kills))
    run(cli, sockets, result, *command, KILLS=" ".join(kills), KILL_AFTER_S=delay).check()
    assert [losses_of(result, rank) for rank in range(2)] == plain(reference_runs)
    starts = starts_of(result, 0)
    assert starts == starts_of(result, 1)
    for kill, start in zip(kills, starts[1:], strict=True):
        step = int(kill.split(":")[0])
        assert start in (step, step + 1)


def test_what_ranks_share_is_shared_when_they_are_resumed(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    result, usage = tmp_path / "ours", tmp_path / "usage"
    killed = run(cli, sockets, result, *torchrun(), KILLS="2:0", KILL_AFTER_S=0.2)
    assert killed.status != 0
    environment = {"AT_END": f"{_WRITE_USAGE} {usage}", "MEMTIDE_SOCKET_DIR": sockets}
    run(cli, sockets, result, "--resume", *torchrun(), **environment).check()
    assert [losses_of(result, rank) for rank in range(2)] == plain(reference_runs)
    assert starts_of(result, 0)[1] in (2, 3)
    kinds = json.loads(usage.read_text(encoding="utf-8"))
    for kind in ("parameter", "optimizer_state"):
        assert kinds[kind]["shared_bytes"] >= 4 << 20, kinds


@pytest.mark.long
def test_spawned_ranks_resume_and_a_run_without_resume_begins_anew(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    assert run(cli, sockets, result, KILLS="2:1", KILL_AFTER_S=0.2).status != 0
    assert run(cli, sockets, result, KILLS="1:1", KILL_AFTER_S=0.2).status != 0
    run(cli, sockets, result, "--resume").check()
    assert [losses_of(result, rank) for rank in range(2)] == plain(reference_runs)
    for rank in range(2):
        first, second, third = starts_of(result, rank)
        assert (first, second) == (0, 0)
        assert third in (1, 2)


def test_another_number_of_ranks_is_refused(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    result = tmp_path / "ours"
    killed = run(cli, sockets, result, *torchrun(), KILLS="1:0", KILL_AFTER_S=0.2)
    assert killed.status != 0
    single = [*_TORCHRUN, "--nproc-per-node=1"]
    refused = run(cli, sockets, result, "--resume", *single)
    assert refused.status != 0
    assert 'job "one" has 2 ranks, not a single process' in refused.err


@pytest.mark.long
def test_ranks_go_on_after_the_daemon_was_killed(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    flags = ["--device=none", "--host-pool=384MiB", "--ssd-pool=1GiB", "--no-host-reserve"]
    flags += [f"--ssd-dir={tmp_path / 'ssd'}", "--metrics-address=off"]
    with short_directory() as home:
        manager = ServiceManager(home, flags)
        manager.start()
        place = [f"--socket-dir={home}", "--job=one", "--chunk-size=2MiB"]
        script = ["run", *place, *torchrun(), SCRIPT, STEPS]
        waits = {"WAIT_AT": 2, "WAIT_FOR": tmp_path / "never"}
        with cli.start_memtide(*script, RESULT=result, **waits) as ranks:
            while not Path(f"{result}0").exists() or len(losses_of(result, 0)) < 3:
                assert ranks.poll() is None, ranks.communicate()
            manager.kill()
            _, printed = ranks.communicate()
        assert ranks.returncode != 0
        assert "daemon" in printed, printed
        manager.start()
        run(cli, home, result, "--resume", *torchrun()).check()
        manager.close()
    assert [losses_of(result, rank) for rank in range(2)] == plain(reference_runs)
    assert starts_of(result, 0)[1] in (2, 3)
