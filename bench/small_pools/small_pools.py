"""Measures training in small pools: eight small models, plain and under memtide by turns.

A figure is the geometric mean, over the models, of a step under memtide by a plain step, in
a host pool of an eighth of the states, of a quarter, and of one that holds all, with the rest on
SSD. The pool is at least the smallest one that a run takes, 8 MiB. Others are of the bytes that a
step moves from and to SSD, by the least that its uses of chunks allow, whatever stays in the pool
(daemon/replay/optimum.h).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from figures import Pair
from training import train_overhead

_MIB = 1 << 20
_LEAST_POOL_MIB = 8
# Parameters, gradients and the optimizer's states of each model of train.py, in MiB.
STATES_MIB = {
    "vae": 40,
    "mnist": 46,
    "word_lstm": 52,
    "word_transformer": 72,
    "dcgan": 55,
    "mingpt": 65,
    "resnet": 60,
    "vit": 66,
}
# By figure, the part of the states that the pool holds. While all fits, no step has shadow chunks.
POOLS = {"small_pools.eighth": 1 / 8, "small_pools.quarter": 1 / 4, "small_pools.fits": 2.0}
BYTES = {"small_pools.bytes_eighth": 1 / 8, "small_pools.bytes_quarter": 1 / 4}
_COUNTED_STEPS = 20
# Plans and speculation have begun.
_WARM_UP_STEPS = 8
_WAYS = ("read", "written")
_TRAIN = Path(__file__).with_name("train.py")


@dataclass(frozen=True)
class SmallPoolOptions:
    """Each model and pool has `pairs` pairs of steps, in at most `seconds`."""

    ssd_parent: Path
    pairs: int
    seconds: float
    models: tuple[str, ...] = tuple(STATES_MIB)


def measure(options: SmallPoolOptions) -> dict[str, list[Pair]]:
    """Measures the pair of each figure, and prints each model's on standard error."""
    samples = {}
    for figure, part in POOLS.items():
        ratios, loads = [], []
        for name in options.models:
            pool_mib = _pool_mib(name, part)
            pairs = train_overhead.measure(
                train_overhead.StepOptions(
                    script=_TRAIN,
                    arguments=[name, "100000"],
                    memtide_arguments=_pools(options, pool_mib),
                    most_pairs=options.pairs,
                    most_seconds=options.seconds,
                    warm_up_steps=_WARM_UP_STEPS,
                )
            )
            ratio = statistics.median(pair.product / pair.limit for pair in pairs)
            ratios.append(ratio)
            loads += [pair.others_cpus for pair in pairs]
            print(f"{figure}: {name}, {pool_mib} MiB: {ratio:.2f}", file=sys.stderr)
        samples[figure] = [
            Pair(1.0, statistics.geometric_mean(ratios), math.fsum(loads) / len(loads))
        ]
    return samples


def count(options: SmallPoolOptions) -> dict[str, list[Pair]]:
    """Counts the bytes of each figure, and prints each model's on standard error."""
    samples = {}
    for figure, part in BYTES.items():
        ratios = []
        for name in options.models:
            pool_mib = _pool_mib(name, part)
            moved, least = _moved_and_least_bytes(options, name, pool_mib)
            ratios.append(moved / least)
            of_step = f"{moved / _MIB:.0f} MiB a step, the least is {least / _MIB:.0f}"
            print(f"{figure}: {name}, {pool_mib} MiB: {of_step}", file=sys.stderr)
        samples[figure] = [Pair(1.0, statistics.geometric_mean(ratios), 0.0)]
    return samples


def _moved_and_least_bytes(
    options: SmallPoolOptions, name: str, pool_mib: int
) -> tuple[float, float]:
    """The bytes that a step of the model moves from and to SSD, and the least of its uses."""
    with tempfile.TemporaryDirectory(prefix="small-pools.") as folder:
        stats, trace = Path(folder) / "stats.json", Path(folder) / "run.trace.gz"
        run = [sys.executable, "-m", "memtide", "run", "--quiet", *_pools(options, pool_mib)]
        outputs = [f"--stats={stats}", f"--trace={trace}"]
        script = [str(_TRAIN), name, str(_COUNTED_STEPS)]
        subprocess.run([*run, *outputs, *script], check=True, stdout=subprocess.DEVNULL)
        records = json.loads(stats.read_text(encoding="utf-8"))["records"]
        replay = [os.environ["MEMTIDE_REPLAY"], "--policy=optimum", "--json"]
        replayed = subprocess.check_output([*replay, str(trace)])
    counted = [each for each in records if each["first_iteration"] > _WARM_UP_STEPS]
    moved = sum(sum(each["moved_bytes"][f"ssd_{way}_bytes"] for way in _WAYS) for each in counted)
    [optimum] = json.loads(replayed)[0]["policies"]
    return moved / sum(each["iterations"] for each in counted), optimum["moved_bytes"]


def _pool_mib(name: str, part: float) -> int:
    return max(_LEAST_POOL_MIB, int(STATES_MIB[name] * part) // 2 * 2)


def _pools(options: SmallPoolOptions, pool_mib: int) -> list[str]:
    pools = ["--device=none", f"--host-pool={pool_mib}MiB", "--ssd-pool=1GiB"]
    return [*pools, f"--ssd-dir={options.ssd_parent}"]
