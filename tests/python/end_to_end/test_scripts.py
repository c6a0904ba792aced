"""Unmodified scripts give the same losses and weights under `memtide run`, to the bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

Run = Callable[..., tuple[Any, Any, Any]]

# By script, the MiB of its host pool: about a quarter of parameters, gradients and optimizer state.
CASES = {
    "mlp_sgd": 8,
    "gpt_adamw": 12,
    "lion": 8,
    "tied_weights": 10,
    "grad_accumulation": 10,
    "frozen_groups": 12,
    "checkpointing": 10,
    "bf16_autocast": 8,
    "convnet": 8,
    "resume": 10,
    "custom_optimizer": 10,
    "foreach_fused": 10,
    "data_workers": 12,
    "big_embedding": 10,
    "closures": 8,
    "shared_bytes": 8,
}
# By script whose steps are computed in parts: the MiB of a host pool that holds a part.
IN_PARTS = {
    "mlp_sgd": 12,
    "gpt_adamw": 20,
    "lion": 12,
    "tied_weights": 16,
    "grad_accumulation": 16,
    "frozen_groups": 16,
    "checkpointing": 16,
    "bf16_autocast": 16,
    "resume": 16,
    "foreach_fused": 16,
    "data_workers": 16,
}
# Scripts whose operations run on several threads, which fault chunks in at the same time.
THREADED = {"mlp_sgd", "convnet"}


def test_every_script_is_a_case() -> None:
    # Scripts that other test files run.
    elsewhere = {
        "oom_retry",
        "long_training",
        "resumable",
        "checkpointed",
        "clipping",
        "scaled_clipping",
        "low_host_memory",
        "activation_heavy",
        "uneven_batches",
        "chosen_ranks",
        "on_device",
        "evaluating",
        "gan_on_device",
        "compiled",
    }
    elsewhere |= {"states_by_hand", "changing_shapes", "deterministic", "own_mul", "traced"}
    elsewhere |= {
        "data_parallel",
        "data_parallel_on_device",
        "fully_sharded",
        "manual_allreduce",
        "ranks_apart",
    }
    elsewhere |= {"large_layer", "adapters", "resumable_ranks", "flips_ssd"}
    elsewhere |= {"exchanging", "pipelined", "resumable_pipeline"}
    elsewhere |= {"sharing", "sharing_sharded", "delinking"}
    names = {path.stem for path in SCRIPTS.glob("*.py")} - {"common", "tiny_gpt", "sequence_point"}
    assert names - elsewhere == set(CASES)


@pytest.fixture
def run(cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path) -> Run:
    """Runs a script with a host pool of `host_mib` MiB and more options. Returns the results of the
    plain script and of the one under memtide, and the content of the --stats file."""
    return functools.partial(run_both, cli, reference_runs, tmp_path)


def run_both(
    cli: Cli, reference_runs: ReferenceRuns, folder: Path, name: str, host_mib: int, *more: str
) -> tuple[Any, Any, Any]:
    script = SCRIPTS / f"{name}.py"
    offloaded, stats = folder / "offloaded", folder / "stats"
    threads = 2 if name in THREADED else 1
    plain = reference_runs.result(script, "--flag", "a b", threads=threads)
    cli.memtide(
        "run",
        f"--host-pool={host_mib}MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={folder / 'ssd'}",
        f"--stats={stats}",
        *more,
        script,
        "--flag",
        "a b",
        RESULT=offloaded,
        OMP_NUM_THREADS=threads,
    ).check()
    plain_result, result, statistics = (
        json.loads(f.read_text()) for f in (plain, offloaded, stats)
    )
    return plain_result, result, statistics


@pytest.mark.parametrize("name", CASES)
def test_script_gives_the_same_bits(name: str, run: Run) -> None:
    plain, offloaded, stats = run(name, CASES[name])
    assert offloaded == plain
    assert stats["kinds"]["parameter"]["allocated_bytes"] > 0
    assert stats["iterations"] > 0


@pytest.mark.parametrize("name", IN_PARTS)
def test_script_gives_the_same_bits_where_its_steps_are_in_parts(name: str, run: Run) -> None:
    plain, offloaded, stats = run(name, IN_PARTS[name])
    assert offloaded == plain
    assert stats["offloaded_steps"] > 0
