"""Unmodified scripts under `memtide run` on a GPU that is played (base/cuda/fake).

Its memory is at addresses that the CPU can use too, so tensors are the CPU's; but what is not
leased is not mapped, and a touch of it ends the process, as on a GPU: the net must miss nothing.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SCRIPTS, Cli
from plain_runs import PlainRuns

_DAEMON = os.environ.get("MEMTIDED_FAKE_CUDA")
_LIBRARY = os.environ.get("MEMTIDE_LIBRARY_FAKE_CUDA")
pytestmark = pytest.mark.skipif(not (_DAEMON and _LIBRARY), reason="built without the CUDA toolkit")

# Script and the MiB of its device pool: about a quarter of parameters, gradients and optimizer
# state, but two operands of its largest operation.
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
    "big_embedding": 32,
    "hungry": 20,
}


@pytest.fixture
def gpu() -> Iterator[str]:
    """The settings of a fake GPU of 256 MiB."""
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as directory:
        yield f"dir={directory},memory=256MiB,delay_us=50"


Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(cli: Cli, plain_runs: PlainRuns, tmp_path: Path, gpu: str) -> Run:
    """Runs a script plain and offloaded, compares, and returns what the second one cost."""
    return functools.partial(run_both, cli, plain_runs, tmp_path, gpu)


def run_both(
    cli: Cli, plain_runs: PlainRuns, tmp_path: Path, gpu: str, name: str
) -> dict[str, Any]:
    script = SCRIPTS / f"{name}.py"
    offloaded, stats = tmp_path / "offloaded", tmp_path / "stats"
    plain = plain_runs.result(script, "--flag", "a b")
    cli.memtide(
        "run",
        "--device=cuda",
        f"--device-pool={CASES[name]}MiB",
        "--host-pool=24MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={stats}",
        script,
        "--flag",
        "a b",
        RESULT=offloaded,
        ON_GPU="1",
        MEMTIDED=_DAEMON,
        MEMTIDE_LIBRARY=_LIBRARY,
        MEMTIDE_FAKE_CUDA=gpu,
    ).check()
    assert json.loads(offloaded.read_text()) == json.loads(plain.read_text())
    found: dict[str, Any] = json.loads(stats.read_text())
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name != "hungry"])
def test_script_gives_the_same_bits(name: str, run: Run) -> None:
    found = run(name)
    assert found["kinds"]["parameter"]["allocated_bytes"] > 0
    assert found["client"]["faults"] == 0
    assert found["moved_bytes"]["device_to_host_bytes"] > 0


def test_a_script_that_needs_more_of_the_gpu_gets_it_from_the_pool(run: Run) -> None:
    found = run("hungry")
    device = next(pool for pool in found["pools"] if pool["tier"] == "device")
    # Twice 3 MiB were short: two chunks each time.
    assert device["free_bytes"] == 8 * 2**20
    assert device["used_bytes"] + device["reserved_bytes"] == 12 * 2**20
