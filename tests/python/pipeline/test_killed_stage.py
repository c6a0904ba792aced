"""A pipeline whose stage is killed goes on from one step, in all stages, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, Outcome
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

BATCHES = 6
STAGES = 4
SCRIPT = SCRIPTS / "resumable_pipeline.py"
_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--monitor-interval=0.1"]


@pytest.fixture
def sockets(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A daemon without a device, or with one that a test asks for."""
    device = getattr(request, "param", "none")
    pools = [] if device == "none" else ["--device-pool=96MiB"]
    with node_daemon(
        tmp_path / "ssd", "--no-host-reserve", *pools, host_pool="512MiB", device=device
    ) as sockets:
        yield sockets


def torchrun(restarts: int = 0) -> list[str]:
    """Its options for all stages."""
    return [*_TORCHRUN, f"--nproc-per-node={STAGES}", f"--max-restarts={restarts}"]


def run(
    cli: Cli, sockets: Path, result: Path, *more: object, restarts: int = 0, **environment: object
) -> Outcome:
    """Runs the stages of the job."""
    options = [f"--socket-dir={sockets}", "--job=one", "--chunk-size=2MiB", *more]
    command = ["torchrun", *torchrun(restarts), SCRIPT, BATCHES]
    return cli.memtide("run", *options, *command, RESULT=result, **environment)


def steps_of(result: Path, rank: int) -> dict[int, str]:
    """The results of a stage after each batch; asserts that they were the same each time."""
    steps: dict[int, str] = {}
    for line in Path(f"{result}{rank}").read_text(encoding="utf-8").splitlines():
        batch, rest = line.split(" ", 1)
        if batch != "start":
            assert steps.setdefault(int(batch), rest) == rest, f"batch {batch} of rank {rank}"
    return steps


def starts_of(result: Path) -> list[list[int]]:
    """The batches at which each stage began."""
    texts = (Path(f"{result}{rank}").read_text(encoding="utf-8") for rank in range(STAGES))
    return [
        [int(line.split()[1]) for line in text.splitlines() if line.startswith("start")]
        for text in texts
    ]


def plain(reference_runs: ReferenceRuns, **environment: object) -> list[dict[int, str]]:
    """The steps of each stage without memtide and without a kill."""
    result = reference_runs.result(SCRIPT, BATCHES, ranks=STAGES, **environment)
    steps = [steps_of(result, rank) for rank in range(STAGES)]
    assert all(list(each) == list(range(BATCHES)) for each in steps)
    return steps


def check(result: Path, expected: list[dict[int, str]], kills: list[str]) -> None:
    """All stages have come to what is expected, and began at the same batches: that of a kill, or
    one beside it, as stages may be in different batches. A process that ends after a commit may not
    have written what it has come to."""
    starts = starts_of(result)
    assert all(each == starts[0] for each in starts)
    assert starts[0][0] == 0
    for kill, start in zip(kills, starts[0][1:], strict=True):
        batch = int(kill.split(":")[1])
        assert start in (batch - 1, batch, batch + 1)
    for rank, its in enumerate(expected):
        steps = steps_of(result, rank)
        unwritten = its.keys() - steps.keys()
        assert unwritten <= {start - 1 for start in starts[0][1:]}
        assert steps == {batch: its[batch] for batch in its if batch not in unwritten}


@pytest.mark.parametrize("sockets", ["none", "emulated:2"], indirect=True)
@pytest.mark.parametrize(
    ("kills", "delay"),
    [
        (["1:2:3", "3:3:step"], 0.0),
        pytest.param(["0:1:4", "2:2:step", "0:4:step"], 0.0, marks=pytest.mark.long),
        pytest.param(["3:1:later", "0:2:later", "1:4:later"], 0.01, marks=pytest.mark.long),
    ],
)
def test_stages_that_torchelastic_starts_anew_go_on_to_the_bit(
    kills: list[str],
    delay: float,
    cli: Cli,
    reference_runs: ReferenceRuns,
    sockets: Path,
    tmp_path: Path,
) -> None:
    result = tmp_path / "ours"
    environment = {"KILLS": " ".join(kills), "KILL_AFTER_S": delay, "SKIP": 1}
    run(cli, sockets, result, restarts=len(kills), **environment).check()
    check(result, plain(reference_runs, SKIP=1), kills)


def test_a_run_that_was_killed_in_its_first_batch_begins_anew(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    assert run(cli, sockets, result, KILLS="2:0:4").status != 0
    run(cli, sockets, result, "--resume").check()
    check(result, plain(reference_runs), ["2:0:4"])
    assert starts_of(result) == [[0, 0]] * STAGES


def test_the_user_resumes_after_a_kill(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    kills = ["2:3:0"]
    assert run(cli, sockets, result, KILLS=kills[0]).status != 0
    resumed = run(cli, sockets, result, "--resume").check()
    check(result, plain(reference_runs), kills)
    # Stages 1 and 2 have parameters of the same shapes, and are no ranks that ought to be equal.
    assert "differ from those" not in resumed.err
