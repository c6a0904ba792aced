"""Times optimizers that are not torch's, with a quarter of their states in memory and with all.

    bench/programs/optimizers [--only NAME...]

Each trains the GPT of tests/libraries/optimizers/train.py with 25 M parameters for six steps of two
sequences of 16, so that the optimizer's own step decides: plain, then under `memtide run` in a host
pool of a quarter of its parameters, gradients and states. The time of a step is the median of all
but the first and that which follows a loaded state. Prints each step by the plain one's, whether
all losses are equal, and the geometric mean. Exits 0 if all are equal, the mean is 2 at most, and
none is above 5.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_TRAIN = _ROOT / "tests" / "libraries" / "optimizers" / "train.py"
_WIDTH = 832  # 25.3 M parameters.
_MIB = 2**20
_MOST_SECONDS = 600.0
_MEAN_GOAL, _MOST_GOAL = 2.0, 5.0
# By library, names in tests/libraries/optimizers/catalogue.py.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "pytorch_optimizer": (
        *("adafactor", "adammini", "adan", "ademamix", "apollo", "came", "galore", "lamb"),
        *("lars", "lion", "mars", "prodigy", "sm3", "tiger"),
    ),
    "schedulefree": ("AdamWScheduleFree", "SGDScheduleFree"),
    "lion-pytorch": ("Lion",),
    "prodigyopt": ("Prodigy",),
    "timm": ("nadamw", "lookahead_adamw"),
}
_LINE = re.compile(r"^\S+: loss (\S+)(?: at (\S+))?$", re.M)


def run(command: list[str], folder: Path) -> tuple[list[str], float]:
    """The losses of a run, and the seconds of a step."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "pyclient"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    lines = _LINE.findall(done.stdout)
    ends = [float(end) for _, end in lines if end]
    steps = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    del steps[2]  # The state was copied and loaded.
    return [loss for loss, _ in lines], statistics.median(steps)


def compare(library: str, name: str) -> tuple[float, bool]:
    """The time of a step in a quarter by a plain step's, and whether all losses are equal. Prints
    both."""
    train = [str(_TRAIN), library, str(_WIDTH), name]
    with tempfile.TemporaryDirectory(prefix="optimizers.") as made:
        folder = Path(made)
        plain, plain_s = run(train, folder)
        base = ["-m", "memtide", "run", "--quiet", "--device=none", f"--ssd-dir={folder / 'ssd'}"]
        stats = folder / "stats.json"
        # Gradients are in chunks where a trace is to show them.
        more = ["--host-pool=2GiB", f"--stats={stats}", f"--trace={folder / 'run.trace.gz'}"]
        run([*base, *more, *train], folder)
        kinds = json.loads(stats.read_text(encoding="utf-8"))["kinds"]
        pool_mib = sum(kind["allocated_bytes"] for kind in kinds.values()) // 4 // _MIB
        ours, seconds = run([*base, f"--host-pool={pool_mib}MiB", *train], folder)
    equal = "equal" if ours == plain else "OTHER LOSSES"
    print(
        f"{library} {name}: {plain_s:.2f} s, {seconds:.2f} s in {pool_mib} MiB, "
        f"{seconds / plain_s:.2f}x, {equal}",
        flush=True,
    )
    return seconds / plain_s, ours == plain


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME")
    only = parser.parse_args().only
    chosen = [
        (library, name)
        for library, names in OPTIMIZERS.items()
        for name in names
        if only is None or name in only
    ]
    results = [compare(library, name) for library, name in chosen]
    ratios = [ratio for ratio, _ in results]
    mean = statistics.geometric_mean(ratios)
    print(f"geometric mean of {len(ratios)}: {mean:.2f}x, the most {max(ratios):.2f}x")
    return int(
        not all(equal for _, equal in results) or mean > _MEAN_GOAL or max(ratios) > _MOST_GOAL
    )


if __name__ == "__main__":
    sys.exit(main())
