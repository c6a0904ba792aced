"""Ranks on two nodes, each with a daemon of its own, go on from one step."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from memtide._daemon import inspection
from two_nodes import Node, two_nodes

STEPS = 6
SCRIPT = SCRIPTS / "resumable_ranks.py"
_PATIENCE_S = 240
pytestmark = pytest.mark.long


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with two_nodes(tmp_path) as both:
        yield both


def lines_of(result: Path, rank: int) -> list[list[str]]:
    path = Path(f"{result}{rank}")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def losses_of(result: Path, ranks: int) -> list[dict[int, str]]:
    """The loss of each step, by rank; asserts that a repeated step has the same loss."""
    losses: list[dict[int, str]] = []
    for rank in range(ranks):
        losses.append({})
        for step, loss in lines_of(result, rank):
            if step != "start":
                assert losses[-1].setdefault(int(step), loss) == loss, (rank, step)
    return losses


def starts_of(result: Path, ranks: int) -> list[list[int]]:
    return [
        [int(step) for word, step in lines_of(result, rank) if word == "start"]
        for rank in range(ranks)
    ]


def plain(cli: Cli, folder: Path, ranks: int) -> list[dict[int, str]]:
    command = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={ranks}", str(SCRIPT), str(STEPS)]
    cli.python(*command, RESULT=folder / "plain").check()
    return losses_of(folder / "plain", ranks)


def wait_for_step(result: Path, step: int, running: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not any(line[0] == str(step) for line in lines_of(result, 0)):
        assert time.monotonic() < until
        for each in running:
            assert each.poll() is None, each.communicate()
        time.sleep(0.02)


def end(running: list[subprocess.Popen[str]]) -> list[str]:
    texts = [each.communicate(timeout=_PATIENCE_S)[1] for each in running]
    assert [each.returncode for each in running] == [0] * len(running), texts
    return texts


def test_a_killed_rank_takes_all_nodes_back_to_one_step(
    nodes: list[Node], cli: Cli, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    kill = {"RESULT": result, "KILLS": "3:1", "KILL_AFTER_S": 0.0}
    end([node.run(cli, 1, SCRIPT, STEPS, **kill) for node in nodes])
    first, second = starts_of(result, 2)
    assert first == second
    assert first[0] == 0
    assert first[1] in (3, 4)
    assert losses_of(result, 2) == plain(cli, tmp_path, 2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_node_gets_what_the_other_one_has(
    ranks: int, nodes: list[Node], cli: Cli, tmp_path: Path
) -> None:
    result, goes_on = tmp_path / "ours", tmp_path / "goes-on"
    waits = {"RESULT": result, "WAIT_AT": 2, "WAIT_FOR": goes_on}
    first, second = running = [node.run(cli, ranks, SCRIPT, STEPS, **waits) for node in nodes]
    wait_for_step(result, 2, running)
    nodes[1].lose()
    second.communicate(timeout=_PATIENCE_S)
    goes_on.touch()
    nodes[1].start_daemon()
    end([first, nodes[1].run(cli, ranks, SCRIPT, STEPS, RESULT=result)])
    starts = starts_of(result, 2 * ranks)
    assert all(each == starts[0] for each in starts), starts
    assert starts[0][0] == 0
    assert starts[0][-1] in (2, 3)
    assert losses_of(result, 2 * ranks) == plain(cli, tmp_path, 2 * ranks)
    # Its ranks share what they have received, too.
    shared = inspection.inspect(nodes[1].home).counters.get("parts_shared", 0)
    assert (shared > 0) == (ranks > 1)


def test_nodes_that_are_started_again_resume_together(
    nodes: list[Node], cli: Cli, tmp_path: Path
) -> None:
    result = tmp_path / "ours"
    waits = {"RESULT": result, "WAIT_AT": 2, "WAIT_FOR": tmp_path / "never"}
    running = [node.run(cli, 1, SCRIPT, STEPS, **waits) for node in nodes]
    wait_for_step(result, 2, running)
    for each in running:
        each.terminate()
    for each in running:
        each.communicate(timeout=_PATIENCE_S)
    resume = ("--resume",)
    end([node.run(cli, 1, SCRIPT, STEPS, options=resume, RESULT=result) for node in nodes])
    starts = starts_of(result, 2)
    assert starts[0] == starts[1]
    assert starts[0][1] in (2, 3)
    assert losses_of(result, 2) == plain(cli, tmp_path, 2)
