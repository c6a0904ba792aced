"""Unmodified scripts under `memtide run` on a fake GPU (base/cuda/fake).

Its memory is at addresses that the CPU can use too, so tensors are on the CPU. But a chunk that is
not leased is not mapped, and an access to it ends the process, as on a GPU: lease dispatch must see
every access. As on the host, results are equal to the bit.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

pytestmark = pytest.mark.usefixtures("gpu")

# By script, the MiB of its device pool: about a quarter of parameters, gradients and optimizer
# state, but at least two operands of its largest operation.
CASES = {
    "mlp_sgd": 14,
    "gpt_adamw": 14,
    "tied_weights": 14,
    "checkpointing": 14,
    "bf16_autocast": 14,
    "convnet": 20,
    "resume": 14,
    "custom_optimizer": 14,
    "foreach_fused": 14,
    "data_workers": 14,
    "grad_accumulation": 20,
    "frozen_groups": 20,
    "big_embedding": 32,
    "oom_retry": 20,
}
# Scripts whose optimizers step in the script's thread: their steps have no parts.
IN_THE_THREAD = {"custom_optimizer"}


Run = Callable[..., tuple[Any, Any, Any]]


@pytest.fixture
def run(cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path) -> Run:
    """Runs a script with more options. Returns the results of the plain script and of the one under
    memtide, and the content of the --stats file."""
    return functools.partial(run_both, cli, reference_runs, tmp_path)


def run_both(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path, name: str, *more: str
) -> tuple[Any, Any, Any]:
    script = SCRIPTS / f"{name}.py"
    offloaded, stats = tmp_path / "offloaded", tmp_path / "stats"
    plain = reference_runs.result(script, "--flag", "a b")
    cli.memtide(
        "run",
        "--device=cuda",
        f"--device-pool={CASES[name]}MiB",
        "--host-pool=24MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={stats}",
        *more,
        script,
        "--flag",
        "a b",
        RESULT=offloaded,
        ON_GPU="1",
    ).check()
    plain_result, result, statistics = (
        json.loads(f.read_text()) for f in (plain, offloaded, stats)
    )
    return plain_result, result, statistics


@pytest.mark.parametrize("name", [name for name in CASES if name != "oom_retry"])
def test_script_gives_the_same_bits(name: str, run: Run) -> None:
    plain, offloaded, statistics = run(name)
    assert offloaded == plain
    assert statistics["kinds"]["parameter"]["allocated_bytes"] > 0
    assert statistics["client"]["faults"] == 0
    assert statistics["moved_bytes"]["device_to_host_bytes"] > 0
    assert (statistics["offloaded_steps"] == 0) == (name in IN_THE_THREAD)


@pytest.mark.parametrize("name", CASES)
def test_script_gives_the_same_bits_where_all_fits(name: str, run: Run) -> None:
    plain, offloaded, statistics = run(name, "--device-pool=192MiB")
    assert offloaded == plain
    assert statistics["moved_bytes"]["device_to_host_bytes"] == 0


def test_a_script_that_needs_more_of_the_gpu_gets_it_from_the_pool(run: Run) -> None:
    plain, offloaded, statistics = run("oom_retry")
    assert offloaded == plain
    device = next(pool for pool in statistics["pools"] if pool["tier"] == "device")
    # Twice an allocation of 3 MiB failed, and two chunks were evicted for it.
    assert device["free_bytes"] == 8 * 2**20
    assert device["used_bytes"] + device["reserved_bytes"] == 12 * 2**20
