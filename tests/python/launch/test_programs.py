"""`memtide run` also runs modules, commands in Python, and launchers of several processes."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli
from memtide._capi.locate import find_daemon
from memtide._daemon import gpus
from memtide._daemon.private_daemon import Pools
from reference_runs import ReferenceRuns

_TORCHRUN = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
_ALLREDUCE = SCRIPTS / "manual_allreduce.py"
_SAYS_WHAT_IT_IS = """
import sys
from . import part
print(__name__, __package__, __spec__.name, part.NAME, sys.argv, sys.path[0])
print(sys.modules["__main__"].part.NAME, __file__, __builtins__.__name__)
raise part.Failure(int(sys.argv[1]))
"""
_PREPARES = """
import os, runpy, sys
from pathlib import Path
import torch
def prepare(rank):
    Path(os.environ["RESULT"] + str(rank)).write_text("prepared")
if __name__ == "__main__":
    torch.multiprocessing.spawn(prepare, nprocs=2)
    assert all(Path(os.environ["RESULT"] + str(rank)).exists() for rank in range(2))
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    runpy.run_path(sys.argv.pop(1))
"""
_PART = "NAME = 'part'\nclass Failure(Exception): pass\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory with a package `training`, which prints its arguments and then fails."""
    folder = tmp_path / "training"
    folder.mkdir()
    for name, text in {
        "__init__": "",
        "__main__": _SAYS_WHAT_IT_IS,
        "part": _PART,
        "broken": "a b",
    }.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["training", "training.__main__"])
def test_a_module_sees_what_python_shows_it(name: str, cli: Cli, package: Path) -> None:
    ours = cli.memtide("run", "--quiet", "-m", name, "7", "--its=own", cwd=package)
    plain = cli.python("-m", name, "7", "--its=own", cwd=package)
    assert (ours.status, ours.out) == (plain.status, plain.out)
    assert ours.out
    # Python's own traceback has two frames of runpy before the module's.
    frames = re.compile(r'  File "(.*)", line (\d+)')
    assert frames.findall(ours.err) == frames.findall(plain.err)[2:]
    assert ours.err.splitlines()[-1] == plain.err.splitlines()[-1] == "training.part.Failure: 7"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("training.nowhere", "no module named 'training.nowhere' that can be run"),
        ("training.part.deeper", "can't find module 'training.part.deeper'"),
        ("training.broken", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_run(name: str, message: str, cli: Cli, package: Path) -> None:
    done = cli.memtide("run", "--quiet", "-m", name, cwd=package)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_command_on_the_path_is_run(cli: Cli, tmp_path: Path) -> None:
    # Both forms that pip writes; the second one if the interpreter's path is long.
    shells = f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''\n"
    for name, first in (("fit", f"#!{sys.executable}\n"), ("refit", shells)):
        command = tmp_path / name
        command.write_text(f"{first}import sys; print(sys.argv)\n", encoding="utf-8")
        command.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = cli.memtide("run", "--quiet", name, "--its=own", PATH=path).check()
        assert done.out == f"{[str(command), '--its=own']}\n"


def test_a_module_trains_as_its_script_does(cli: Cli, tmp_path: Path) -> None:
    flags = ["--host-pool=16MiB", "--ssd-pool=256MiB", f"--ssd-dir={tmp_path / 'ssd'}"]
    results = [tmp_path / "module", tmp_path / "script"]
    cli.memtide("run", *flags, "-m", "mlp_sgd", cwd=SCRIPTS, RESULT=results[0]).check()
    cli.python(SCRIPTS / "mlp_sgd.py", RESULT=results[1]).check()
    assert results[0].read_bytes() == results[1].read_bytes()


def _recording_daemon(folder: Path) -> tuple[Path, Path]:
    """A memtided that appends the flags of each start to a file as a line; and this file."""
    starts, daemon = folder / "starts", folder / "memtided"
    daemon.write_text(f'#!/bin/sh\necho "$*" >> {starts}\nexec {find_daemon()} "$@"\n')
    daemon.chmod(0o755)
    return daemon, starts


def _started(starts: Path) -> list[set[str]]:
    """The flags of each daemon that was started, except to list GPUs."""
    flags_of_starts = [
        set(line.split()) for line in starts.read_text(encoding="utf-8").splitlines()
    ]
    return [flags for flags in flags_of_starts if "--list-gpus" not in flags]


@pytest.mark.parametrize(
    ("starter", "more"),
    [
        (["torchrun", *_TORCHRUN], []),
        (["-m", "torch.distributed.run", *_TORCHRUN], ["--device-pool=32MiB", "--device=emulated"]),
        ([], []),
        ([], ["--device-pool=32MiB", "--device=emulated"]),
    ],
    ids=["torchrun", "module and device", "spawn", "spawn and device"],
)
def test_ranks_share_one_daemon(
    starter: list[str],
    more: list[str],
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    ours, stats = tmp_path / "ours", tmp_path / "stats"
    script = (SCRIPTS / "data_parallel.py", "--its=own")
    plain = reference_runs.result(*script, ranks=2 if starter else 0)
    # The host pool is half of what the ranks need together.
    flags = ["--host-pool=48MiB", "--ssd-pool=1GiB", f"--ssd-dir={tmp_path / 'ssd'}", *more]
    flags += ["--chunk-size=2MiB", f"--stats={stats}"]
    daemon, starts = _recording_daemon(tmp_path)
    done = cli.memtide("run", *flags, *starter, *script, RESULT=ours, MEMTIDED=daemon).check()
    assert ours.read_bytes() == plain.read_bytes()
    assert len(_started(starts)) == 1
    # Only rank 0 prints the summary.
    assert done.err.count("chunks leased") == 1
    assert "nothing" not in done.err
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    assert statistics["iterations"] == 6
    assert statistics["moved_bytes"]["ssd_written_bytes"] > statistics["iterations"] << 20


@pytest.mark.parametrize("more", [[], ["--skip-non-finite"]], ids=["", "skipping"])
def test_collectives_write_to_chunks(
    more: list[str], cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    plain, ours = reference_runs.result(_ALLREDUCE, ranks=2), tmp_path / "ours"
    run = [*_TORCHRUN, _ALLREDUCE]
    # The gradients alone need more chunks than may be leased at once.
    flags = ["--host-pool=52MiB", "--ssd-pool=1GiB", f"--ssd-dir={tmp_path / 'ssd'}", *more]
    cli.memtide("run", *flags, "--chunk-size=2MiB", "torchrun", *run, RESULT=ours).check()
    assert ours.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize(
    "more",
    [[], ["--skip-non-finite"], ["--optimizer-on=host"]],
    ids=["", "skipping", "on the host"],
)
@pytest.mark.usefixtures("gpu")
def test_collectives_write_to_chunks_of_a_gpu(
    more: list[str], cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    plain, ours, stats = (
        reference_runs.result(_ALLREDUCE, ranks=2),
        tmp_path / "ours",
        tmp_path / "stats",
    )
    run = [*_TORCHRUN, _ALLREDUCE]
    # For each rank room for its parameters, which it receives all at once, but not for gradients
    # and states as well.
    flags = ["--device=cuda", "--device-pool=64MiB", "--host-pool=96MiB", "--ssd-pool=1GiB"]
    flags += [f"--ssd-dir={tmp_path / 'ssd'}", f"--stats={stats}", *more, "--chunk-size=2MiB"]
    cli.memtide("run", *flags, "torchrun", *run, RESULT=ours, ON_GPU="1").check()
    assert ours.read_bytes() == plain.read_bytes()
    assert json.loads(stats.read_text())["moved_bytes"]["device_to_host_bytes"] > 0


@pytest.mark.parametrize(
    ("starter", "gpus_there"), [(["torchrun", *_TORCHRUN], 2), ([], 2), ([], 3)]
)
@pytest.mark.usefixtures("gpu")
def test_one_daemon_has_the_gpus_of_all_ranks(
    starter: list[str],
    gpus_there: int,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "MEMTIDE_FAKE_CUDA", f"{os.environ['MEMTIDE_FAKE_CUDA']},devices={gpus_there}"
    )
    ours, stats = tmp_path / "ours", tmp_path / "stats"
    script = (SCRIPTS / "data_parallel.py", "--its=own")
    plain = reference_runs.result(*script)
    flags = ["--device-pool=32MiB", "--host-pool=96MiB", "--ssd-pool=1GiB"]
    flags += [f"--ssd-dir={tmp_path / 'ssd'}", f"--stats={stats}"]
    daemon, starts = _recording_daemon(tmp_path)
    more = {"RESULT": ours, "MEMTIDED": daemon, "ON_GPU": "1"}
    done = cli.memtide("run", *flags, *starter, *script, **more).check()
    assert ours.read_bytes() == plain.read_bytes()
    assert len(_started(starts)) == 1
    assert done.err.count("chunks leased") == 1
    assert "nothing" not in done.err
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    assert statistics["iterations"] == 6
    assert statistics["moved_bytes"]["device_to_host_bytes"] > statistics["iterations"] << 20
    devices = [pool for pool in statistics["pools"] if pool["tier"] == "device"]
    assert [pool["device_number"] for pool in devices] == list(range(gpus_there))
    assert {pool["capacity_bytes"] for pool in devices} == {32 << 20}


@pytest.mark.usefixtures("gpu")
def test_a_daemon_of_one_process_has_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(host_bytes=1 << 30)
    assert gpus.of_one_process(pools, 1) == pools, "the only GPU"
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"{os.environ['MEMTIDE_FAKE_CUDA']},devices=3")
    assert gpus.of_one_process(pools, 2) == Pools(device="cuda:2", host_bytes=1 << 30)
    assert gpus.of_one_process(pools, 4).device == "cuda:1"
    for named in (Pools(device_bytes=0), Pools(device="cuda:1"), Pools(device="none")):
        assert gpus.of_one_process(named, 2) == named
    # If GPUs cannot be listed, the daemon says what is wrong.
    monkeypatch.setenv("MEMTIDE_FAKE_CUDA", "driver=no-uvm")
    assert gpus.of_one_process(pools, 2) == pools


def test_a_script_may_start_processes_for_other_things(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "prepares.py"
    script.write_text(_PREPARES, encoding="utf-8")
    flags = ["--host-pool=16MiB", "--ssd-pool=256MiB", f"--ssd-dir={tmp_path / 'ssd'}"]
    plain, ours, stats = (tmp_path / name for name in ("plain", "ours", "stats"))
    trained = SCRIPTS / "mlp_sgd.py"
    done = cli.memtide("run", *flags, f"--stats={stats}", script, trained, RESULT=ours).check()
    cli.python(script, trained, RESULT=plain).check()
    assert ours.read_bytes() == plain.read_bytes()
    assert "nothing" not in done.err
    assert done.err.count("chunks leased") == 1
    statistics = json.loads(stats.read_text(encoding="utf-8"))
    assert (statistics["iterations"], statistics["moved_bytes"]["ssd_written_bytes"] > 0) == (
        6,
        True,
    )


def test_what_is_not_trained_here_is_told(cli: Cli, package: Path) -> None:
    flags = ["--host-pool=64MiB", "--ssd-pool=64MiB", f"--ssd-dir={package}"]
    done = cli.memtide("run", *flags, "-m", "training.part", cwd=package).check()
    assert "memtide managed nothing: no optimizer stepped in this process" in done.err


def test_a_launcher_s_failure_is_its_own(cli: Cli, package: Path) -> None:
    run = [*_TORCHRUN, "-m", "training.nowhere"]
    flags = ["--host-pool=64MiB", "--ssd-pool=64MiB", f"--ssd-dir={package}"]
    done = cli.memtide("run", *flags, "torchrun", *run, cwd=package)
    assert done.status == 1
    assert "no module named 'training.nowhere' that can be run" in done.err
    assert "ChildFailedError" in done.err


def test_ranks_that_could_not_make_room_for_each_other(cli: Cli, package: Path) -> None:
    done = cli.memtide("run", "--ssd-pool=0", "torchrun", *_TORCHRUN, "-m", "training", cwd=package)
    assert (done.status, done.out) == (2, "")
    assert "only with an SSD pool" in done.err


def test_a_pool_that_is_too_small_for_the_ranks_is_named(cli: Cli, package: Path) -> None:
    done = cli.memtide(
        *("run", "--host-pool=16MiB", "torchrun", *_TORCHRUN, "-m", "training"), cwd=package
    )
    assert (done.status, done.out) == (2, "")
    assert "memtide: --host-pool 16.0 MiB is too small: 2 ranks need at least 32.0 MiB" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python", "train.py"], "leave 'python' out: memtide run train.py"),
        (["/usr/bin/python3.11", "train.py"], "leave '/usr/bin/python3.11' out"),
        (["-m", "no.where"], "no module named 'no.where'"),
        (["-m", ".where"], "no module named '.where'"),
        (["torchrun", "--no-python", "train.py", "x"], "leave the launcher's no-python out"),
        (["torchrun", "--nproc-per-node=2"], "usage: torchrun"),
        (["accelerates", "config"], "no script at 'accelerates', and no such command"),
        (["true"], "/true' is no Python program"),
        (["."], "can't open script '.': __main__.py"),
    ],
)
def test_bad_usage_is_told_before_anything_starts(
    arguments: list[str], message: str, cli: Cli, tmp_path: Path
) -> None:
    done = cli.memtide("run", *arguments, cwd=tmp_path, MEMTIDED="/nonexistent")
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
