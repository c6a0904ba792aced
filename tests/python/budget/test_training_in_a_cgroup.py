"""A script that needs 3 GB trains in a cgroup of 1 GiB that holds it and its daemon."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from limited_cgroup import ENTER, LimitedCgroup, NoCgroup, limited_cgroup
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

_SCRIPT = SCRIPTS / "activation_heavy.py"
# For each of two ranks, and what torchrun takes.
_RANKS, _RANK_BYTES = 2, 900 * 2**20
_SMALL = {"BLOCKS": 6, "BATCH": 12, "STEPS": 2}  # Plain torch needs 2 GB for it.


@pytest.mark.parametrize(
    ("batch", "limit_gib"), [(19, 1), pytest.param(39, 2, marks=pytest.mark.long)]
)
def test_a_script_of_three_times_the_memory_trains_where_plain_torch_is_killed(
    batch: int, limit_gib: int, cli: Cli, tmp_path: Path
) -> None:
    result, stats = tmp_path / "result", tmp_path / "stats"
    large = {"RESULT": result, "BLOCKS": 12, "BATCH": batch, "STEPS": 2}
    flags = (f"--stats={stats}", f"--ssd-dir={tmp_path / 'ssd'}")
    run = ("-m", "memtide", "run", *flags, _SCRIPT)
    try:
        with limited_cgroup(limit_gib * 2**30) as cgroup:
            plain = cli.python("-c", ENTER, cgroup.path, _SCRIPT, **large)
            ours = cli.python("-c", ENTER, cgroup.path, *run, **large)
    except NoCgroup as reason:
        pytest.skip(str(reason))
    assert plain.status == -signal.SIGKILL
    assert "memtide: the budget is " in ours.check().err
    budget = json.loads(stats.read_text(encoding="utf-8"))["budget"]
    assert budget["host_source"].startswith("the limit of cgroup ")
    assert budget["host_bytes"] < limit_gib * 2**30
    assert budget["host_most_used_bytes"] <= budget["host_bytes"]
    assert len(json.loads(result.read_text(encoding="utf-8"))["losses"]) == 2


def test_a_budget_changes_no_bit(cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path) -> None:
    ours, stats = tmp_path / "ours", tmp_path / "stats"
    plain = reference_runs.result(_SCRIPT, **_SMALL)
    flags = ("--device=none", "--host-memory=900MiB", f"--stats={stats}")
    done = cli.memtide(
        "run", *flags, f"--ssd-dir={tmp_path / 'ssd'}", _SCRIPT, RESULT=ours, **_SMALL
    ).check()
    assert ours.read_text(encoding="utf-8") == plain.read_text(encoding="utf-8")
    assert "host memory: the budget was 900 MiB, and script and daemon used at most" in done.err
    budget = json.loads(stats.read_text(encoding="utf-8"))["budget"]
    assert 600 * 2**20 < budget["host_most_used_bytes"] <= budget["host_bytes"] == 900 * 2**20
    # Some 400 MiB, most of it torch, and what an operation needs meanwhile, 100 MiB. Kept
    # activations, 150 MiB and more, are no part of it.
    assert budget["host_most_own_bytes"] < 530 * 2**20


def test_on_an_emulated_device_slots_and_kept_activations_stay_within_its_memory(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    ours, stats = tmp_path / "ours", tmp_path / "stats"
    plain = reference_runs.result(_SCRIPT, **_SMALL)
    flags = ("--device=emulated", "--device-memory=512MiB", f"--stats={stats}")
    cli.memtide(
        "run", *flags, f"--ssd-dir={tmp_path / 'ssd'}", _SCRIPT, RESULT=ours, **_SMALL
    ).check()
    assert ours.read_text(encoding="utf-8") == plain.read_text(encoding="utf-8")
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    budget = statistics["budget"]
    assert 400 * 2**20 < budget["device_most_used_bytes"] <= budget["device_bytes"] == 512 * 2**20
    assert statistics["moved_bytes"]["device_to_host_bytes"] > 0
    assert "host_bytes" not in budget


def test_a_script_that_takes_the_budget_itself_ends_with_both_numbers(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "holds.py"
    script.write_text(
        "import torch\n"
        "held = torch.ones(200 << 20)\n"
        "layer = torch.nn.Linear(2048, 2048)\n"
        "layer(torch.ones(512, 2048)).sum().backward()\n"
        "print('trained')\n",
        encoding="utf-8",
    )
    flags = ("--device=none", "--host-memory=600MiB", f"--ssd-dir={tmp_path / 'ssd'}")
    done = cli.memtide("run", *flags, script)
    assert done.status == 1
    assert "trained" not in done.out
    assert "the script's own memory is 1." in done.err
    assert "beside what memtide manages, and --host-memory is 600 MiB" in done.err


def test_ranks_with_the_nodes_daemon_are_not_killed_and_need_no_flag(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    plain = reference_runs.result(_SCRIPT, **_SMALL)
    try:
        with (
            limited_cgroup(_RANKS * _RANK_BYTES) as cgroup,
            node_daemon(tmp_path, ssd_pool="4GiB") as socket_dir,
        ):
            _train_with_the_nodes_daemon(cgroup, socket_dir, tmp_path, cli)
    except NoCgroup as reason:
        pytest.skip(str(reason))
    for rank in range(_RANKS):
        ours = (tmp_path / f"result{rank}").read_text(encoding="utf-8")
        assert ours == plain.read_text(encoding="utf-8")


def _train_with_the_nodes_daemon(
    cgroup: LimitedCgroup, socket_dir: Path, folder: Path, cli: Cli
) -> None:
    script = folder / "ranks.py"
    script.write_text(
        "import os, runpy, sys, torch.distributed\n"
        "torch.distributed.init_process_group('gloo')\n"
        "os.environ['RESULT'] += os.environ['RANK']\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"runpy.run_path({str(_SCRIPT)!r})\n",
        encoding="utf-8",
    )
    run = ("-m", "memtide", "run", f"--socket-dir={socket_dir}")
    launch = ("torchrun", f"--nproc-per-node={_RANKS}", script)
    result = folder / "result"
    ours = cli.python("-c", ENTER, cgroup.path, *run, *launch, RESULT=result, **_SMALL).check()
    assert ours.err.count("leaves for chunks where memory is short") == _RANKS


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "ranks", "limit_mib"),
    [("compiled", 0, 800), ("generating", 0, 700), ("sharded", 2, 1800)],
)
def test_compiled_generating_and_sharded_scripts_need_no_flag_either(
    how: str, ranks: int, limit_mib: int, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    plain = reference_runs.result(_SCRIPT, ranks=ranks, HOW=how, **_SMALL)
    launch = ("torchrun", f"--nproc-per-node={ranks}") if ranks else ()
    run = ("-m", "memtide", "run", f"--ssd-dir={tmp_path / 'ssd'}", *launch, _SCRIPT)
    ours = tmp_path / "result"
    try:
        with limited_cgroup(limit_mib * 2**20) as cgroup:
            more = {"RESULT": ours, "HOW": how, "OMP_NUM_THREADS": 1, **_SMALL}
            cli.python("-c", ENTER, cgroup.path, *run, **more).check()
    except NoCgroup as reason:
        pytest.skip(str(reason))
    for rank in map(str, range(ranks)) if ranks else ("",):
        results = [path.with_name(path.name + rank) for path in (ours, plain)]
        ours_text, plain_text = (path.read_text(encoding="utf-8") for path in results)
        assert ours_text == plain_text
