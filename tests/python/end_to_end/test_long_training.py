"""Training with a real daemon's steps follows torch's for hundreds of steps, in many situations.

docs/optimizers.md promises a relative error of 1e-6 in each step. These tests bound what that
becomes in losses, since each step's gradients depend on the weights of the last one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SCRIPTS, Cli
from reference_runs import ReferenceRuns

# The relative tolerance of losses and gradient norms. Weights and states may differ by ten times
# that, relative to each tensor's largest element: an element with small gradients has a small
# denominator.
FP32 = 1e-5
# The daemon rounds once at the end of a step, torch after each operation.
BF16 = 0.1
# A last bit in fp32 decides now and then which way a weight is rounded stochastically. One or two
# such weights of the first step move later losses by up to 0.4%. Rounding to nearest would move
# them by 3.4%, and by 0.8% in the mean.
STOCHASTIC = 0.01

# By case: steps, the MiB of a host pool that holds one step call but not everything, the tolerance.
CASES = {
    "adamw": (200, 24, FP32),
    "sgd": (200, 22, 0.0),
    "adamw bf16": (200, 14, BF16),
    "sgd bf16": (200, 10, BF16),
    "adagrad": (25, 22, FP32),
    "adam amsgrad maximize": (25, 24, FP32),
    "adamw accumulation frozen absent": (25, 24, FP32),
    "adamw scaler": (25, 24, FP32),
    "bf16 master": (200, 24, 0.03),
    "fp16 master": (25, 24, 1e-3),
    "bf16 stochastic": (25, 20, STOCHASTIC),
    "moments": (25, 20, 1e-3),
    "custom": (8, 10, 0.0),
}


def train(
    case: str, steps: int, host_mib: int, cli: Cli, reference_runs: ReferenceRuns, folder: Path
) -> tuple[Any, Any, int]:
    """The results of plain torch and under the daemon, and the number of steps by the daemon."""
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
    return torch.load(plain), torch.load(offloaded), statistics["daemon_steps"]


def check_curves(case: str, values: list[float], expected: list[float]) -> None:
    """Losses and gradient norms follow torch's to the tolerance in each step, and to a fifth of it
    in the mean. The norms of "bf16 master" may differ by twice the tolerance: one weight that is
    rounded the other way moves a single norm by 3.7% on some CPUs (0.2% in the mean)."""
    steps, _, tolerance = CASES[case]
    ours, torchs = (torch.tensor(curve).reshape(steps, -1) for curve in (values, expected))
    norm_tolerance = 2 * tolerance if case == "bf16 master" else tolerance
    for columns, bound in ((slice(0, -1), tolerance), (slice(-1, None), norm_tolerance)):
        torch.testing.assert_close(
            ours[:, columns], torchs[:, columns], rtol=bound, atol=bound, equal_nan=True
        )
    errors = ((ours - torchs) / torchs).abs()
    assert errors[errors.isfinite()].mean().item() <= tolerance / 5


def test_what_fits_the_pool_is_stepped_in_place(
    cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    # 16 chunks fill all slots, and are more than may be leased at once; shadow chunks would be
    # evicted to SSD.
    plain, offloaded, daemon_steps = train("adamw", 25, 32, cli, reference_runs, tmp_path)
    assert daemon_steps == 0
    torch.testing.assert_close(offloaded, plain, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_training_goes_as_with_torchs_optimizer(
    case: str, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    steps, host_mib, tolerance = CASES[case]
    plain, offloaded, daemon_steps = train(case, steps, host_mib, cli, reference_runs, tmp_path)
    if case == "custom":
        assert daemon_steps == 0
    elif "scaler" in case:  # Steps with infinite gradients are skipped.
        assert 0 < daemon_steps < steps
    else:
        assert daemon_steps >= steps - 2  # Before the states exist, everything may fit.
    check_curves(case, offloaded["losses"], plain["losses"])
    for value, expected in zip(offloaded["weights"], plain["weights"], strict=True):
        limit = 10 * tolerance * expected.abs().max().item()
        torch.testing.assert_close(value, expected, rtol=0, atol=limit)
    assert offloaded["states"].keys() == plain["states"].keys()
    for index, expected_state in plain["states"].items():
        for name, expected in expected_state.items():
            limit = 10 * tolerance * expected.abs().max().item()
            value = offloaded["states"][index][name]
            torch.testing.assert_close(value, expected, rtol=0, atol=limit)
