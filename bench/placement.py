"""The demo's GPT with states eight times the device, on an emulated link: what placement saves.

Runs of the same steps: by turns in plain torch and under `memtide run`; and, for what placement
saves, while nobody tells the daemon what is used when: then nothing is brought ahead and victims
are those used longest ago. Stalls are what fetches wait for, and what the process waits for a step
of the daemon; the same is measured with the optimizer in the script's process (`--exact`), where
all of a step's chunks are fetched.
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

import machine
import node
from figures import Pair

# The first ones learn: states are born, then the order of an iteration is seen for the first time.
WARM_UP_STEPS = 3
_UNTOLD = Path(__file__).with_name("untold.py")
POOLS = """
device: "emulated"
device_pool_bytes: 100663296
emulated_link { bytes_per_second: 4000000000 }
host_pool_bytes: 201326592
"""


@dataclass(frozen=True)
class PlacementOptions:
    """`steps` in each run, warm-up included; `turns` of a plain run and one under memtide."""

    memtided: Path
    ssd_parent: Path
    script: Path
    arguments: Sequence[str]
    steps: int
    turns: int


@dataclass(frozen=True)
class _Cost:
    """Of a step, in the median."""

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


def _under_memtide(
    script: Sequence[str], options: PlacementOptions, home: Path, *flags: str
) -> _Cost:
    config, stats = home / "config.textproto", home / "stats.json"
    config.write_text(POOLS, encoding="ascii")
    with node.running(options.memtided, options.ssd_parent, [f"--config={config}"]) as daemon:
        told = ["--quiet", f"--socket-dir={daemon.socket_dir}", f"--stats={stats}", *flags]
        _train(["-m", "memtide", "run", *told, *script], options, home / "log")
    records = json.loads(stats.read_text(encoding="utf-8"))["records"][WARM_UP_STEPS:]
    return _Cost(
        seconds=statistics.median(each["seconds"] / each["iterations"] for each in records),
        stalled_s=statistics.median(
            (sum(each["stalled_s"].values()) + each["step_wait_s"]) / each["iterations"]
            for each in records
        ),
    )


def measure(options: PlacementOptions) -> dict[str, list[Pair]]:
    """Pairs of each figure, from runs one after the other."""
    script = [str(options.script)]
    untold = [str(_UNTOLD), *script]
    efficiency, told = [], []
    with tempfile.TemporaryDirectory(prefix="memtide-bench-") as name:
        home = Path(name)
        for _ in range(options.turns):
            load = machine.LoadBesideChildren()
            plain_s = statistics.median(_train(script, options, home / "plain"))
            told.append(_under_memtide(script, options, home))
            efficiency.append(Pair(plain_s, told[-1].seconds, load.of_others()))
        load = machine.LoadBesideChildren()
        stalled_s = statistics.median(cost.stalled_s for cost in told)
        untold_s = _under_memtide(untold, options, home).stalled_s
        stall = Pair(untold_s, stalled_s, load.of_others())
        load = machine.LoadBesideChildren()
        exact_s = _under_memtide(script, options, home, "--exact").stalled_s
        untold_s = _under_memtide(untold, options, home, "--exact").stalled_s
        exact = Pair(untold_s, exact_s, load.of_others())
    return {
        "placement.stall": [stall],
        "placement.stall_exact": [exact],
        "placement.efficiency": efficiency,
    }
