"""Scripts of training libraries give the same losses and weights under `memtide run` as plain, bit
for bit."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Cli
from reference_runs import ReferenceRuns
from stepping_script import node_daemon

SCRIPTS = Path(__file__).resolve().parent / "scripts"


# By script, the MiB of its host pool: about a quarter of parameters, gradients and optimizer state.
CASES = {
    "accelerate_t5": 24,
    "lightning_trainer": 16,
    "peft_lora": 16,
    "timm_vit": 28,
    "torchvision_resnet": 40,
    "transformers_trainer": 20,
}

Run = Callable[..., tuple[Any, Any, Any]]


def test_every_script_is_a_case_and_none_was_written_for_memtide() -> None:
    found = {path.stem: path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")}
    assert found.keys() - {"report", "small_t5"} == CASES.keys() | RANKS.keys()
    assert not [name for name, text in found.items() if "memtide" in text]


@pytest.fixture
def run(cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path) -> Run:
    """Runs a script plainly and under memtide, with its host pool and more options.

    Returns the results of both runs, and the content of --stats.
    """
    return functools.partial(run_both, cli, reference_runs, tmp_path)


def run_both(
    cli: Cli, reference_runs: ReferenceRuns, folder: Path, name: str, *more: str
) -> tuple[Any, Any, Any]:
    script = SCRIPTS / f"{name}.py"
    offloaded, stats = folder / "offloaded", folder / "stats"
    host_mib = CASES[name]
    plain = reference_runs.result(script)
    cli.memtide(
        "run",
        f"--host-pool={host_mib}MiB",
        "--ssd-pool=512MiB",
        f"--ssd-dir={folder / 'ssd'}",
        f"--stats={stats}",
        *more,
        script,
        RESULT=offloaded,
    ).check()
    plain_result, result, totals = (json.loads(f.read_text()) for f in (plain, offloaded, stats))
    # On average, a step reads more bytes from SSD than the pool has, and writes more.
    pool_bytes = host_mib << 20
    assert totals["iterations"] > 0
    assert totals["moved_bytes"]["ssd_read_bytes"] > totals["iterations"] * pool_bytes
    assert totals["moved_bytes"]["ssd_written_bytes"] > totals["iterations"] * pool_bytes
    return plain_result, result, totals


@pytest.mark.parametrize("name", CASES)
def test_a_library_s_script_gives_the_same_bits(name: str, run: Run) -> None:
    plain, offloaded, stats = run(name)
    assert offloaded == plain
    assert stats["offloaded_steps"] > 0


# By script, the launcher that starts its two ranks; none: it does so itself.
_ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1")
RANKS = {
    "accelerate_ranks": (*_ACCELERATE, "--mixed_precision=no", "--dynamo_backend=no"),
    "lightning_ddp": (),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_of_a_library_share_what_they_have_alike(name: str, cli: Cli, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    program = [*(("-m", *RANKS[name]) if RANKS[name] else ()), SCRIPTS / f"{name}.py"]
    # Without it accelerate's launcher starts one process on a machine without GPUs.
    more = {"ACCELERATE_USE_CPU": "true"}
    cli.python(*program, RESULT=plain, **more).check()
    with node_daemon(tmp_path / "ssd", "--no-host-reserve", host_pool="64MiB") as sockets:
        more |= {"RESULT": str(ours), "MEMTIDE_SOCKET_DIR": str(sockets)}
        more["AT_END"] = f"-m memtide status --socket-dir={sockets}"
        status = cli.memtide("run", *program, **more).check().out
    assert ours.read_text() == plain.read_text()
    rows = re.findall(r"(\d) of 2 +\d+ +([\d.]+) MiB +([\d.]+) MiB", status)
    assert [int(rank) for rank, *_ in rows] == [0, 1], status
    for _, contents, shared in rows:
        assert float(shared) >= 0.8 * float(contents), status


def test_accelerate_s_launcher_starts_its_script_under_memtide(run: Run) -> None:
    launcher = ["accelerate", "launch", "--cpu", "--num_processes=1", "--num_machines=1"]
    launcher += ["--num_cpu_threads_per_process=1", "--mixed_precision=no", "--dynamo_backend=no"]
    plain, offloaded, stats = run("accelerate_t5", *launcher)
    assert offloaded == plain
    assert stats["iterations"] > 0
