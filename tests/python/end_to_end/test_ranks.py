"""Ranks under one launcher keep what they have alike once, and never another rank's bits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli, Outcome
from memtide._daemon import inspection
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

_SCRIPT = SCRIPTS / "ranks_apart.py"
_WRITE_USAGE = Path(__file__).resolve().parents[1] / "testing" / "write_usage.py"
_STATES = ("parameter", "optimizer_state")
_OWN = re.compile(
    r"memtide: in rank (\d), (.+?) of (one of )?module\.layers\.(\d)\.\w+( to \S+)? differ"
    r" from those of rank (\d) in step (\d)"
)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    with node_daemon(tmp_path / "ssd", "--no-host-reserve", host_pool="384MiB") as sockets:
        yield sockets


def _torchrun(ranks: int) -> list[str]:
    return ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]


def _results(prefix: Path, ranks: int = 2) -> list[Any]:
    texts = [Path(f"{prefix}{rank}").read_text(encoding="utf-8") for rank in range(ranks)]
    return [json.loads(text) for text in texts]


def _plain(reference_runs: ReferenceRuns, kind: str) -> list[Any]:
    return _results(reference_runs.result(_SCRIPT, kind, ranks=2))


def _run(
    cli: Cli, folder: Path, sockets: Path, kind: str, ranks: int = 2, **more: object
) -> Outcome:
    run = ["--chunk-size=2MiB", "torchrun", *_torchrun(ranks), _SCRIPT, kind]
    return cli.memtide("run", *run, RESULT=folder / "ours", MEMTIDE_SOCKET_DIR=sockets, **more)


def _kept_bytes(usage: Path) -> dict[str, int]:
    """The bytes of parameters and of states that the daemon keeps."""
    kinds = json.loads(usage.read_text(encoding="utf-8"))
    return {kind: kinds[kind]["host_bytes"] + kinds[kind]["ssd_bytes"] for kind in _STATES}


def test_the_tide_and_the_status_show_each_rank(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    page, at_end = tmp_path / "tide.html", f"-m memtide status --socket-dir={sockets}"
    run = [f"--tide={page}", "--tide-iteration=2", "--chunk-size=2MiB", "torchrun", *_torchrun(2)]
    more = {"RESULT": tmp_path / "ours", "MEMTIDE_SOCKET_DIR": sockets, "AT_END": at_end}
    status = cli.memtide("run", *run, _SCRIPT, "alike", **more).check().out
    rows = re.findall(r"(\d) of 2 +\d+ +([\d.]+) MiB +([\d.]+) MiB", status)
    assert [int(rank) for rank, *_ in rows] == [0, 1]
    for _, contents, shared in rows:
        assert 8 <= float(shared) < float(contents), status
    text = page.read_text(encoding="utf-8").split('type="application/json">')[1]
    ranks = json.loads(text.split("</script>")[0])["ranks"]
    assert [rank["name"] for rank in ranks] == ["rank 0", "rank 1"]
    for rank in ranks:
        leased, own = (use["kib"] for use in rank["uses"])
        assert len(set(leased)) > 1
        assert min(own) > 50 << 10


_long = pytest.mark.long


@pytest.mark.parametrize(
    "kind",
    [
        "frozen",
        *(pytest.param(kind, marks=_long) for kind in ("alike", "loaded", "masters", "sgd")),
    ],
)
def test_ranks_keep_the_states_of_one(
    kind: str, cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    kept_by_ranks = []
    for ranks in (1, 2):
        usage = tmp_path / f"usage{ranks}"
        done = _run(cli, tmp_path, sockets, kind, ranks, AT_END=f"{_WRITE_USAGE} {usage}").check()
        kept_by_ranks.append(_kept_bytes(usage))
    assert "differ" not in done.err
    for state in _STATES:
        assert kept_by_ranks[0][state] >= 4 << 20
        assert kept_by_ranks[1][state] <= 1.05 * kept_by_ranks[0][state], kept_by_ranks
    assert _results(tmp_path / "ours") == _plain(reference_runs, kind)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("flip", "the gradients"),
        pytest.param("rate", "the options or the elements of the step", marks=_long),
        pytest.param("threads", "the options or the elements of the step", marks=_long),
        pytest.param("one", "the values", marks=_long),
    ],
)
def test_a_rank_that_differs_is_named_and_has_its_own_bits(
    kind: str,
    what: str,
    cli: Cli,
    reference_runs: ReferenceRuns,
    sockets: Path,
    tmp_path: Path,
) -> None:
    done = _run(cli, tmp_path, sockets, kind).check()
    assert _results(tmp_path / "ours") == _plain(reference_runs, kind)
    differences = _OWN.findall(done.err)
    assert differences, done.err
    # From the next step on, what differs are the values, too.
    rank, its_what, _, layer, _, other, _ = min(differences, key=lambda line: line[-1])
    assert {rank, other} == {"0", "1"}
    assert its_what == what
    # Options differ for all layers, whose parts are computed in any order.
    assert "options" in what or int(layer) <= 5


@pytest.mark.long
@pytest.mark.parametrize("kind", ["all", "unused", "missing"])
def test_ranks_that_come_to_differ_have_plain_bits(
    kind: str, cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    _run(cli, tmp_path, sockets, kind).check()
    assert _results(tmp_path / "ours") == _plain(reference_runs, kind)


def test_ranks_that_have_nothing_alike_stop_looking_for_it(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats"
    run = [f"--stats={stats}", "--chunk-size=2MiB", "torchrun", *_torchrun(2), _SCRIPT, "unlike"]
    cli.memtide("run", *run, RESULT=tmp_path / "ours", MEMTIDE_SOCKET_DIR=sockets).check()
    costs = json.loads(stats.read_text(encoding="utf-8"))
    assert (costs["offloaded_steps"], costs["iterations"]) == (3, 6)
    assert _results(tmp_path / "ours") == _plain(reference_runs, "unlike")


@pytest.mark.long
def test_a_killed_rank_ends_the_training(cli: Cli, sockets: Path, tmp_path: Path) -> None:
    done = _run(cli, tmp_path, sockets, "kill")
    assert done.status != 0
    assert "SIGKILL" in done.err
    assert not (tmp_path / "ours0").exists()
    assert not inspection.inspect(sockets, sessions=True).sessions


@pytest.mark.parametrize("method", ["", "fork", pytest.param("spawn", marks=_long)])
def test_ranks_that_a_script_starts_share_as_those_of_a_launcher(
    method: str, cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    more: dict[str, object] = {"MEMTIDE_SOCKET_DIR": sockets}
    if method:
        more["START"] = method
    run = ["run", "--chunk-size=2MiB", _SCRIPT, "alike"]
    cli.memtide(*run, RESULT=tmp_path / "ours", AT_END=f"{_WRITE_USAGE} {usage}", **more).check()
    assert _results(tmp_path / "ours") == _plain(reference_runs, "alike")
    kinds = json.loads(usage.read_text(encoding="utf-8"))
    for state, kept_bytes in _kept_bytes(usage).items():
        assert kept_bytes == kinds[state]["allocated_bytes"] // 2


@pytest.mark.long
def test_sharded_ranks_share_nothing(
    cli: Cli, reference_runs: ReferenceRuns, sockets: Path, tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    done = _run(cli, tmp_path, sockets, "sharded", AT_END=f"{_WRITE_USAGE} {usage}").check()
    assert _results(tmp_path / "ours") == _plain(reference_runs, "sharded")
    assert "differ" not in done.err
    kinds = json.loads(usage.read_text(encoding="utf-8"))
    for state, kept_bytes in _kept_bytes(usage).items():
        assert kept_bytes == kinds[state]["allocated_bytes"]
