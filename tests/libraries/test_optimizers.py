"""Optimizers of torch and of libraries give the same losses under `memtide run` as plain.

Every class of torch.optim is one of them. Optimizers of large libraries are only in
bench/programs/compatibility, which `tools/test --long` runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Cli
from reference_runs import ReferenceRuns

OPTIMIZERS = Path(__file__).resolve().parent / "optimizers"
sys.path.append(str(OPTIMIZERS))

from catalogue import LIBRARIES, NOTABLE  # noqa: E402

SCRIPT = OPTIMIZERS / "train.py"
WIDTH, HOST_MIB = 128, 8  # Parameters, gradients and two states have 8 chunks of 2 MiB.
# With more names than these, pytorch_optimizer takes a minute.
TRIED = {"pytorch_optimizer": sorted(NOTABLE - {"lookahead_adamw"})}
# Which optimizers of a library the daemon may step, to this relative difference in losses.
TOLERANCE = 1e-5


def test_every_class_of_torch_s_optimizers_is_tried() -> None:
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, torch.optim.Optimizer)}
    assert names - {"Optimizer"} <= LIBRARIES["torch"]().keys()


@pytest.mark.parametrize(
    "library", ["torch", "schedulefree", "lion-pytorch", "prodigyopt", "pytorch_optimizer"]
)
def test_optimizers_of_a_library_give_the_same_losses(
    library: str, cli: Cli, reference_runs: ReferenceRuns, tmp_path: Path
) -> None:
    arguments = [library, str(WIDTH), *TRIED.get(library, [])]
    plain = json.loads(reference_runs.result(SCRIPT, *arguments).read_text(encoding="utf-8"))
    result, stats = tmp_path / "result", tmp_path / "stats"
    cli.memtide(
        "run",
        f"--host-pool={HOST_MIB}MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={stats}",
        SCRIPT,
        *arguments,
        RESULT=result,
    ).check()
    ours = json.loads(result.read_text(encoding="utf-8"))
    assert ours.keys() == plain.keys()
    if library != "torch":  # Code that is not torch's steps in place.
        assert ours == plain
    for name, each in ours.items():
        assert floats(each) == pytest.approx(floats(plain[name]), rel=TOLERANCE), name
    moved = json.loads(stats.read_text(encoding="utf-8"))["moved_bytes"]
    assert moved["ssd_read_bytes"] > len(plain) * HOST_MIB << 20


def floats(result: dict[str, Any]) -> list[float]:
    return [float.fromhex(loss) for loss in result["losses"]]
