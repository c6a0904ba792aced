"""Measures training in small pools: eight small models, plain and under memtide by turns.

A figure is the geometric mean, over the models, of a step under memtide by a plain step, in
a host pool of an eighth of the states, of a quarter, and of one that holds all, with the rest on
SSD. The pool is at least the smallest one that a run takes, 8 MiB.
"""

from __future__ import annotations

import math
import statistics
import sys
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
            pool_mib = max(_LEAST_POOL_MIB, int(STATES_MIB[name] * part) // 2 * 2)
            pairs = train_overhead.measure(
                train_overhead.StepOptions(
                    script=Path(__file__).with_name("train.py"),
                    arguments=[name, "100000"],
                    memtide_arguments=[
                        *("--device=none", f"--host-pool={pool_mib}MiB", "--ssd-pool=1GiB"),
                        f"--ssd-dir={options.ssd_parent}",
                    ],
                    most_pairs=options.pairs,
                    most_seconds=options.seconds,
                    # Plans and speculation have begun.
                    warm_up_steps=8,
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
