"""Measures the CPU seconds of a step that memtide has nothing to do for, as everything fits.

Some models of train.py run plain and under `memtide run`, without a flag, by turns
(cpu_of_step.py). CPU seconds depend less on what others do than wall-clock time, and still on their
use of caches and of the other thread of a core. Most of all they depend on how often malloc gives
pages back and takes them anew, which depends on addresses: runs of the same model have 2,400 to
4,500 page faults a step. So malloc keeps its pages here, on both sides.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Pair
from machine import LoadBesideChildren

_WARM_UP_STEPS = 10
_SCRIPT = Path(__file__).with_name("cpu_of_step.py")
_KEPT_PAGES = {"MALLOC_MMAP_THRESHOLD_": f"{2**32}", "MALLOC_TRIM_THRESHOLD_": f"{2**33}"}
_STEPS = {"vae": 100, "mingpt": 40, "resnet": 25}


def measure(pairs: int) -> dict[str, list[Pair]]:
    """Measures the pairs of `fits.cpu`, each a sum over the models, and prints each model's median
    on standard error."""
    ratios: dict[str, list[float]] = {name: [] for name in _STEPS}
    found = []
    for number in range(pairs):
        load = LoadBesideChildren()
        sums = [0.0, 0.0]
        for name, steps in _STEPS.items():
            seconds = [0.0, 0.0]
            for ours in ((False, True), (True, False))[number % 2]:
                seconds[ours] = _seconds_of(name, steps, ours=ours)
            ratios[name].append(seconds[True] / seconds[False])
            # Each model counts as much as the others.
            sums = [sums[i] + seconds[i] / seconds[False] for i in (0, 1)]
        found.append(Pair(sums[0], sums[1], load.of_others()))
    for name, of_model in ratios.items():
        print(f"fits.cpu: {name}: {statistics.median(of_model):.3f}", file=sys.stderr)
    return {"fits.cpu": found}


def _seconds_of(name: str, steps: int, *, ours: bool) -> float:
    run = ["-m", "memtide", "run", "--quiet", "--device=none"] if ours else []
    with tempfile.TemporaryDirectory(prefix="fits.") as folder:
        command = [sys.executable, *run, str(_SCRIPT), name, str(steps)]
        environment = {**os.environ, **_KEPT_PAGES}
        return float(subprocess.check_output(command, cwd=folder, text=True, env=environment))
