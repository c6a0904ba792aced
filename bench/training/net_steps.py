"""Times small GPTs under lease dispatch on a fake GPU against plain torch, step by step in turns.

Lease dispatch is Python that every operation of a script on a GPU may pass. Here tensors are on the
CPU, and batches have 16 tokens, so that an operation takes microseconds and hides nothing of that.

Allocators for GPUs keep what tensors have freed. So does malloc here, in both runs: with its own
settings it returns gradients to the system after each step where nothing lies above them, as where
optimizer states are in chunks, and thousands of page faults of the next step would be measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import torch
from fake_gpu import Options
from figures import Pair
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from training import train_overhead

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import train_gpt  # noqa: E402

_CONTEXT = 16
_WARM_UP_STEPS = 6


@dataclass(frozen=True)
class _Model:
    """A GPT, and how many of its steps take longer than a tick of CPU times (10 ms)."""

    layers: int
    width: int
    steps_per_sample: int
    device_pool: str = "1536MiB"  # All states fit.


_MODELS = {
    "net.step": _Model(12, 576, 4),  # The demo's own.
    "net.step_128": _Model(24, 128, 10),
    "net.step_512": _Model(24, 512, 2),
    "net.step_quarter": _Model(24, 128, 4, "20MiB"),  # A quarter of its 77 MB of states.
}
_SMALLEST = "net.step_128"
_QUARTER = _MODELS["net.step_quarter"]
_SEEN_TIMEOUT_S = 120


@dataclass(frozen=True)
class NetOptions(Options):
    """As Options, and whether only the smallest model is measured."""

    only_smallest: bool


class _Counting(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operations(model: _Model) -> int:
    """The operations of one training step, the first left out."""
    gpt = train_gpt.Gpt(model.layers, model.width, _CONTEXT)
    optimizer = torch.optim.AdamW(gpt.parameters())
    tokens = torch.zeros(1, _CONTEXT, dtype=torch.long)
    with _Counting() as counting:
        for _ in range(2):
            counting.count = 0
            optimizer.zero_grad()
            functional.cross_entropy(gpt(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    return counting.count


def _steps(options: Options, model: _Model) -> list[Pair]:
    """Pairs of seconds a step."""
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as memory:
        return train_overhead.measure(
            train_overhead.StepOptions(
                script=options.script,
                arguments=[
                    *("--steps", "1000000", "--batch", "1", "--context", str(_CONTEXT)),
                    *("--layers", str(model.layers), "--width", str(model.width)),
                ],
                memtide_arguments=[
                    *("--device=cuda", f"--device-pool={model.device_pool}", "--host-pool=256MiB"),
                ],
                most_pairs=options.most_pairs,
                most_seconds=options.most_seconds,
                environment=_environment(options, memory),
                steps_per_sample=model.steps_per_sample,
                warm_up_steps=_WARM_UP_STEPS,
            )
        )


def _environment(options: Options, memory: str) -> dict[str, str]:
    return {
        "MEMTIDE_LIBRARY": str(options.client),
        "MEMTIDED": str(options.memtided),
        "MEMTIDE_FAKE_CUDA": f"dir={memory},memory=2GiB",
        "OMP_NUM_THREADS": "1",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_MMAP_THRESHOLD_": str(2**25),  # The most that malloc takes.
    }


def _seen(options: Options) -> dict[str, list[Pair]]:
    """Operations that lease dispatch sees, and what that costs, where a quarter of the states
    fits."""
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as memory:
        load = machine.Load(machine.our_processes())
        done = subprocess.run(
            [
                *(sys.executable, "-m", "memtide", "run", "--quiet", "--device=cuda"),
                *(f"--device-pool={_QUARTER.device_pool}", "--host-pool=256MiB"),
                str(Path(__file__).with_name("net_seen.py")),
                *map(str, (_QUARTER.layers, _QUARTER.width, _CONTEXT)),
            ],
            capture_output=True,
            text=True,
            timeout=_SEEN_TIMEOUT_S,
            env={**os.environ, **_environment(options, memory)},
        )
        if done.returncode != 0:
            raise train_overhead.TrainingEnded(done.stderr.strip())
        seen = json.loads(done.stdout)
        others = load.of_others()
    count = _operations(_QUARTER)
    cost = Pair(seen["us_without_leaves"] / count, seen["us"] / count, others)
    operations = Pair(seen["seen_operations_without_leaves"], seen["seen_operations"], others)
    return {"net.operation_quarter": [cost], "net.seen_quarter": [operations]}


def measure(options: NetOptions) -> dict[str, list[Pair]]:
    """Measures milliseconds a step, and microseconds for each operation of the smallest model."""
    options.check()
    samples = {} if options.only_smallest else _seen(options)
    for name, model in _MODELS.items():
        if options.only_smallest and name != _SMALLEST:
            continue
        seconds = _steps(options, model)
        samples[name] = [_times(pair, 1e3) for pair in seconds]
        if name == _SMALLEST:
            per_operation = 1e6 / _operations(model)
            samples["net.operation"] = [_times(pair, per_operation) for pair in seconds]
    return samples


def _times(pair: Pair, factor: float) -> Pair:
    return Pair(pair.limit * factor, pair.product * factor, pair.others_cpus)
