"""Training with steps in parts has the bits of plain torch for hundreds of steps, in many
situations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

# By case: steps, and the MiB of a host pool that holds one step part but not everything.
CASES = {
    "adamw": (200, 24),
    "sgd": (200, 22),
    "adamw bf16": (200, 14),
    "sgd bf16": (200, 10),
    "adagrad": (25, 22),
    "adam amsgrad maximize": (25, 24),
    "adamw accumulation frozen absent": (25, 24),
    "adamw scaler": (25, 24),
    "bf16 master": (200, 24),
    "fp16 master": (25, 24),
    "bf16 stochastic": (25, 20),
    "moments": (25, 20),
    "custom": (8, 10),
}


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


@pytest.mark.parametrize("case", CASES)
def test_training_goes_as_with_torchs_optimizer(
    case: str, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    steps, host_mib = CASES[case]
    plain, offloaded, offloaded_steps = train(case, steps, host_mib, cli, reference_runs, tmp_path)
    if case == "custom":
        assert offloaded_steps == 0
    elif "scaler" in case:  # Steps with infinite gradients are skipped.
        assert 0 < offloaded_steps < steps
    else:
        assert offloaded_steps >= steps - 2  # Before the states exist, everything may fit.
    torch.testing.assert_close(offloaded, plain, rtol=0, atol=0, equal_nan=True)
