"""Scripts whose needs, or whose surroundings', change by much train as with plain torch in a cgroup
without a flag, or end with an error that says what to do."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from limited_cgroup import ENTER, LimitedCgroup, NoCgroup, limited_cgroup
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

_SCRIPT = SCRIPTS / "uneven_batches.py"
_MIB = 2**20
_RUNS = 20


@pytest.fixture
def cgroup() -> Iterator[Callable[[int], LimitedCgroup]]:
    """Makes the test's only cgroup, with a limit in MiB."""
    made = []

    def make(limit_mib: int) -> LimitedCgroup:
        context = limited_cgroup(limit_mib * _MIB)
        try:
            group = context.__enter__()
        except NoCgroup as reason:
            pytest.skip(str(reason))
        made.append(context)
        return group

    yield make
    for context in made:
        context.__exit__(None, None, None)


Make = Callable[[int], LimitedCgroup]


def command(group: LimitedCgroup, *flags: object) -> tuple[object, ...]:
    return ("-c", ENTER, group.path, "-m", "memtide", "run", *flags)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_where_chunks_have_no_room_either_the_run_ends_before_the_kernel_kills_it(
    cgroup: Make, cli: Cli, tmp_path: Path
) -> None:
    flags = (f"--ssd-dir={tmp_path / 'ssd'}", "--ssd-pool=64MiB")
    batches = {"BATCHES": [400, 4000], "RESULT": tmp_path / "ours"}
    ours = cli.python(*command(cgroup(500), *flags, _SCRIPT), **batches)
    assert ours.status == 1
    assert "memtide.errors.ResourceExhausted: the script and memtide use " in ours.err
    assert "Give them more with --ssd-pool" in ours.err
    assert text(tmp_path / "ours").startswith("0 ")


@pytest.mark.long
def test_a_first_iteration_of_three_times_the_limit_is_never_killed(
    cgroup: Make, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    group, batches = cgroup(450), {"BATCHES": [6500, 500]}
    plain = text(reference_runs.result(_SCRIPT, **batches))
    for run in range(_RUNS):
        ours = tmp_path / str(run)
        flags = (f"--ssd-dir={tmp_path / 'ssd'}",)
        cli.python(*command(group, *flags, _SCRIPT), RESULT=ours, **batches).check()
        assert text(ours) == plain


@pytest.mark.long
@pytest.mark.parametrize("how", ["the limit is lowered", "another takes it"])
def test_memory_that_goes_while_activations_are_moved(
    how: str, cgroup: Make, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    group, less, ours = cgroup(700), 200 * _MIB, tmp_path / "ours"
    batches = {"BATCHES": [4000] * 6}
    plain = text(reference_runs.result(_SCRIPT, **batches))
    waits = {"WAIT_AT": 2, "WAIT_FOR": tmp_path / "go", "RESULT": ours}
    run = command(group, f"--ssd-dir={tmp_path / 'ssd'}", _SCRIPT)
    with cli.start_python(*run, **batches, **waits) as script:
        while not ours.exists() or text(ours).count("\n") < 2:
            assert script.poll() is None, script.communicate()
        if how == "another takes it":
            hold = f"held = b'1' * {less}; print(flush=True); import signal; signal.pause()"
            other = cli.start_python("-c", ENTER, group.path, "-c", hold)
            assert other.stdout is not None and other.stdout.readline()
        else:
            group.limit(700 * _MIB - less)
        (tmp_path / "go").touch()
        _, errors = script.communicate()
    assert script.returncode == 0, errors
    assert text(ours) == plain


@pytest.mark.long
def test_a_rank_that_needs_ten_times_as_much_as_others(
    cgroup: Make, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    batches, ranks = {"BATCHES": [500] * 3}, 3
    plain = reference_runs.result(_SCRIPT, ranks=ranks, **batches)
    ours, group = tmp_path / "ours", cgroup(1600)
    launch = ("torchrun", "--standalone", f"--nproc-per-node={ranks}")
    with node_daemon(tmp_path, ssd_pool="8GiB") as socket_dir:
        run = command(group, f"--socket-dir={socket_dir}", *launch, _SCRIPT)
        cli.python(*run, RESULT=ours, **batches).check()
    for rank in map(str, range(ranks)):
        assert text(Path(f"{ours}{rank}")) == text(Path(f"{plain}{rank}"))


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--job=one",), ("--job=one", "--durable")])
def test_with_a_nodes_daemon_there_are_plans_also_behind_resume(
    more: tuple[str, ...],
    cgroup: Make,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    group, ours, stats = cgroup(440), tmp_path / "ours", tmp_path / "stats"
    batches = {"BATCHES": [2500] * 12}
    plain = text(reference_runs.result(_SCRIPT, **batches)).splitlines()
    with node_daemon(tmp_path, ssd_pool="8GiB") as socket_dir:
        place = (f"--socket-dir={socket_dir}", f"--stats={stats}", *more)
        if more:
            run = command(group, *place, _SCRIPT)
            killed = cli.python(*run, RESULT=ours, KILL_AT=3, **batches)
            assert killed.status == -signal.SIGKILL
            assert text(ours).splitlines() == plain[:4]
            place = (*place, "--resume")
        cli.python(*command(group, *place, _SCRIPT), RESULT=ours, **batches).check()
    budget = json.loads(text(stats))["budget"]
    assert budget["activations"]["is_planned"]
    # The step in which it was killed is made again.
    assert text(ours).splitlines() == (plain[:4] + plain[3:] if more else plain)
