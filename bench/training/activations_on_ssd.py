"""Times steps whose activations are eight times the host memory that the run may use.

They move to an SSD and back by the plan, or are made again. The limit is the larger of plain
torch's step in ample memory and of the drive's time for the bytes that a step moves, at the speed
that bare io_uring had in the same run.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import machine
from figures import Pair
from training.train_overhead import TrainingEnded

_HOST_MEMORY = 2**30
# Each block keeps 17 MiB of a sequence: 8 GiB.
_SHAPE = {"BLOCKS": "24", "BATCH": "20"}
# From the fifth iteration on there is a plan, which then has to settle.
_WARM_UP_STEPS, _STEPS = 6, 4
_RUN_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Options:
    """`script`: activation_heavy.py. The drive's speeds are in bytes per second."""

    memtided: Path
    script: Path
    ssd_parent: Path
    written_per_second: float
    read_per_second: float


@dataclass(frozen=True)
class _Run:
    step_seconds: list[float]
    written: int
    read: int


def measure(options: Options) -> list[Pair]:
    """One pair: the seconds of a step."""
    load = machine.Load(machine.our_processes())
    plain = _run(options, 3, managed=False)
    # A step's bytes are what a longer run moves beyond a shorter one.
    short = _run(options, _WARM_UP_STEPS, managed=True)
    long = _run(options, _WARM_UP_STEPS + _STEPS, managed=True)
    written = (long.written - short.written) / _STEPS
    read = (long.read - short.read) / _STEPS
    drive = written / options.written_per_second + read / options.read_per_second
    computing = statistics.median(plain.step_seconds)
    step = statistics.median(long.step_seconds[-_STEPS:])
    print(
        f"computing takes {computing:.1f} s, the drive {drive:.1f} s for {written / 2**30:.1f} GiB "
        f"written and {read / 2**30:.1f} read; the step {step:.1f} s",
        file=sys.stderr,
    )
    return [Pair(max(computing, drive), step, load.of_others())]


def _run(options: Options, steps: int, managed: bool) -> _Run:
    with tempfile.TemporaryDirectory(prefix="mt", dir=options.ssd_parent) as name:
        folder = Path(name)
        times, stats = folder / "times", folder / "stats"
        flags = [f"--host-memory={_HOST_MEMORY}", f"--ssd-dir={folder}", f"--stats={stats}"]
        memtide = ["-m", "memtide", "run", "--quiet", "--device=none", *flags] if managed else []
        timed = [Path(__file__).with_name("timed_run.py"), times, options.script]
        paths = (str(options.script.parent), os.environ.get("PYTHONPATH", ""))
        environment = {"PYTHONPATH": os.pathsep.join(paths), "MEMTIDED": str(options.memtided)}
        of_the_script = {**_SHAPE, "STEPS": str(steps), "RESULT": str(folder / "result")}
        done = subprocess.run(
            [sys.executable, *memtide, *map(str, timed)],
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            env={**os.environ, **environment, **of_the_script},
        )
        if done.returncode != 0:
            raise TrainingEnded(done.stderr.strip())
        written = read = 0
        if managed:
            moved = json.loads(stats.read_text(encoding="utf-8"))["moved_bytes"]
            written, read = moved["ssd_written_bytes"], moved["ssd_read_bytes"]
        ends = [float(line) for line in times.read_text(encoding="ascii").splitlines()]
    return _Run(
        [later - sooner for sooner, later in itertools.pairwise(ends)],
        written,
        read,
    )
