"""Prints samples as lines of JSON in the format of bench/harness.h, and their medians."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from figures import Pair  # noqa: E402


def line(figure: str, pairs: Sequence[Pair]) -> str:
    """The line of JSON with all samples of one figure."""
    printed = [
        {"limit": pair.limit, "product": pair.product, "others": pair.others_cpus} for pair in pairs
    ]
    return json.dumps({"figure": figure, "pairs": printed})


def show(figures: dict[str, list[Pair]]) -> None:
    """Prints the lines on standard output, and the median speed-ups on standard error."""
    for figure, pairs in figures.items():
        print(line(figure, pairs), flush=True)
        limit = statistics.median(pair.limit for pair in pairs)
        product = statistics.median(pair.product for pair in pairs)
        speedup = statistics.median(pair.limit / pair.product for pair in pairs)
        others = statistics.median(pair.others_cpus for pair in pairs)
        print(
            f"{figure}: {limit:.3f} s against {product:.3f} s: {speedup:.2f}x in the median of "
            f"{len(pairs)} pairs; others used {others:.2f} CPUs",
            file=sys.stderr,
        )
