"""Measures the stalls that placement saves: the demo's GPT, with states eight times the device.

The device's link is emulated. The same steps run by turns in plain torch and under `memtide run`,
and once without hints (no_hints.py), where the daemon prefetches nothing and evicts by LRU. A stall
is the time that a fetch waits, or that the process waits for the offloaded step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import daemon_process
import machine
from figures import Pair

# Step 1 creates the states; in step 2 the access predictor first records a whole iteration.
WARM_UP_STEPS = 3
_NO_HINTS = Path(__file__).with_name("no_hints.py")
POOLS = """
device: "emulated"
device_pool_bytes: 100663296
emulated_link { bytes_per_second: 4000000000 }
host_pool_bytes: 201326592
"""


@dataclass(frozen=True)
class PlacementOptions:
    """Each run has `steps` steps, warm-up included. A turn is a plain run and one under memtide."""

    memtided: Path
    ssd_parent: Path
    script: Path
    arguments: Sequence[str]
    steps: int
    turns: int


@dataclass(frozen=True)
class _Cost:
    """The median time of a step, and the median of its stalls."""

    seconds: float
    stalled_s: float


def _train(command: Sequence[str], options: PlacementOptions, log: Path) -> list[float]:
    script = [*options.arguments, "--steps", str(options.steps), "--log", str(log)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        [sys.executable, *command, *script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        check=True,
    )
    steps = [json.loads(line)["seconds"] for line in log.read_text(encoding="ascii").splitlines()]
    return steps[WARM_UP_STEPS:]


def _under_memtide(script: Sequence[str], options: PlacementOptions, home: Path) -> _Cost:
    config, stats = home / "config.textproto", home / "stats.json"
    config.write_text(POOLS, encoding="ascii")
    with daemon_process.running(
        options.memtided, options.ssd_parent, [f"--config={config}"]
    ) as daemon:
        flags = ("--quiet", f"--socket-dir={daemon.socket_dir}", f"--stats={stats}")
        _train(["-m", "memtide", "run", *flags, *script], options, home / "log")
    # One record has several steps where these are short.
    records = [
        each
        for each in json.loads(stats.read_text(encoding="utf-8"))["records"]
        if each["first_iteration"] + each["iterations"] > WARM_UP_STEPS + 1
    ]
    return _Cost(
        seconds=statistics.median(each["seconds"] / each["iterations"] for each in records),
        stalled_s=statistics.median(
            (sum(each["stalled_s"].values()) + each["step_wait_s"]) / each["iterations"]
            for each in records
        ),
    )


def measure(options: PlacementOptions) -> dict[str, list[Pair]]:
    """Measures the pairs of each figure, in runs one after the other."""
    script = [str(options.script)]
    without_hints = [str(_NO_HINTS), *script]
    efficiency, costs = [], []
    with tempfile.TemporaryDirectory(prefix="memtide-bench-") as name:
        home = Path(name)
        for _ in range(options.turns):
            load = machine.LoadBesideChildren()
            plain_s = statistics.median(_train(script, options, home / "plain"))
            costs.append(_under_memtide(script, options, home))
            efficiency.append(Pair(plain_s, costs[-1].seconds, load.of_others()))
        load = machine.LoadBesideChildren()
        stalled_s = statistics.median(cost.stalled_s for cost in costs)
        limit_s = _under_memtide(without_hints, options, home).stalled_s
        stall = Pair(limit_s, stalled_s, load.of_others())
    return {
        "placement.stall": [stall],
        "placement.efficiency": efficiency,
    }
