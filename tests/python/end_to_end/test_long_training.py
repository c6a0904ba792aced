"""Training with steps in parts has the bits of plain torch in many situations, in some of them for
hundreds of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

# By case: the MiB of a host pool that holds one step part but not everything.
HOST_MIB = {
    "adamw": 24,
    "sgd": 22,
    "adamw bf16": 14,
    "sgd bf16": 10,
    "adagrad": 22,
    "adam amsgrad maximize": 24,
    "adamw accumulation frozen absent": 24,
    "adamw scaler": 24,
    "bf16 master": 24,
    "fp16 master": 24,
    "bf16 stochastic": 20,
    "moments": 20,
    "custom": 10,
}
STEPS = dict.fromkeys(HOST_MIB, 25) | {"adamw": 200, "custom": 8}
FOR_LONG = ("sgd", "adamw bf16", "sgd bf16", "bf16 master")


def train(
    case: str, steps: int, host_mib: int, cli: Cli, reference_runs: ReferenceRuns, folder: Path
) -> tuple[Any, Any, int]:
    """The results of plain torch and under the daemon, and the number of steps in parts."""
    script = SCRIPTS / "long_training.py"
    offloaded, stats = folder / "offloaded", folder / "stats"
    plain = reference_runs.result(script, case, steps)
    cli.memtide(
        "run",
        "--device=none",
        f"--host-pool={host_mib}MiB",
        "--ssd-pool=512MiB",
        f"--ssd-dir={folder / 'ssd'}",
        f"--stats={stats}",
        script,
        case,
        steps,
        RESULT=offloaded,
    ).check()
    statistics = json.loads(stats.read_text())
    return torch.load(plain), torch.load(offloaded), statistics["offloaded_steps"]


def test_what_fits_the_pool_is_stepped_in_place(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    # 16 chunks fill all slots, and are more than may be leased at once; shadow chunks would be
    # evicted to SSD.
    plain, offloaded, offloaded_steps = train("adamw", 25, 32, cli, reference_runs, tmp_path)
    assert offloaded_steps == 0
    torch.testing.assert_close(offloaded, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("case", "steps"),
    [*STEPS.items(), *(pytest.param(case, 200, marks=pytest.mark.long) for case in FOR_LONG)],
)
def test_training_goes_as_with_torchs_optimizer(
    case: str, steps: int, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    plain, offloaded, offloaded_steps = train(
        case, steps, HOST_MIB[case], cli, reference_runs, tmp_path
    )
    if case == "custom":
        assert offloaded_steps == 0
    elif "scaler" in case:  # Steps with infinite gradients are skipped.
        assert 0 < offloaded_steps < steps
    else:
        assert offloaded_steps >= steps - 2  # Before the states exist, everything may fit.
    torch.testing.assert_close(offloaded, plain, rtol=0, atol=0, equal_nan=True)
