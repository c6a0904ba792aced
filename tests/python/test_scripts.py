"""Unmodified scripts give the same losses and weights under `memtide run`, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli

# Script and the MiB of its host pool: about a quarter of parameters, gradients and optimizer state.
CASES = {
    "mlp_sgd": 8,
    "gpt_adamw": 12,
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
# Their operations run on several threads, which then fault chunks in at the same time.
THREADED = {"mlp_sgd", "convnet"}


def test_every_script_is_a_case() -> None:
    helpers = {"common", "tiny_gpt", "hungry"}  # The last is for a GPU: test_gpu_scripts.py.
    assert {path.stem for path in SCRIPTS.glob("*.py")} - helpers == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_script_gives_the_same_bits(name: str, cli: Cli, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.py"
    plain, offloaded, stats = (tmp_path / file for file in ("plain", "offloaded", "stats"))
    threads = 2 if name in THREADED else 1
    cli.python(script, "--flag", "a b", RESULT=plain, OMP_NUM_THREADS=threads).check()
    cli.memtide(
        "run",
        f"--host-pool={CASES[name]}MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={stats}",
        script,
        "--flag",
        "a b",
        RESULT=offloaded,
        OMP_NUM_THREADS=threads,
    ).check()

    assert json.loads(offloaded.read_text()) == json.loads(plain.read_text())
    allocated = {
        kind: usage["allocated_bytes"]
        for kind, usage in json.loads(stats.read_text())["kinds"].items()
    }
    assert allocated["parameter"] > 0
    assert json.loads(stats.read_text())["iterations"] > 0
