"""Draws a sweep: the speed of training over one budget of a machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memtide._plot.palette import COLOURS, LIMIT_COLOURS
from memtide._util.output_file import check_writable
from memtide.errors import UsageError

_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The result of a sweep. `low` and `high` are the interval of each speed. Budgets with which
    nothing trains have a speed of None, as have their intervals."""

    title: str
    budget_label: str
    budgets: Sequence[float]
    budget_texts: Sequence[str]
    speeds: Sequence[float | None]  # In tokens a second.
    low: Sequence[float | None]
    high: Sequence[float | None]


def check_output(path: Path) -> None:
    """UsageError: `draw` cannot write to this path, or does not know the format of its suffix."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"a sweep is drawn as {' or '.join(_SUFFIXES)}: '{path}' is none of them")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"'{path}' needs matplotlib, which is not installed")
    check_writable(path)


def draw(curve: Curve, path: Path) -> None:
    """Writes the picture to `path`. Budgets with which nothing trains are shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    found = [
        (budget, low, speed, high)
        for budget, low, speed, high in zip(
            curve.budgets, curve.low, curve.speeds, curve.high, strict=True
        )
        if speed is not None and low is not None and high is not None
    ]
    if found:
        budgets, low, speeds, high = zip(*found, strict=True)
        colour = COLOURS["parameter"]
        panel.fill_between(budgets, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(budgets, speeds, color=colour, marker="o", markersize=4)
    failing = [b for b, s in zip(curve.budgets, curve.speeds, strict=True) if s is None]
    if failing:
        first = min((budget for budget, *_ in found), default=max(failing))
        panel.axvspan(min(failing), first, color=LIMIT_COLOURS["pool limit"], alpha=0.25)
        panel.annotate("does not fit", (min(failing), 0), xytext=(4, 4), textcoords="offset points")
    panel.set_xscale("log")
    shown = range(0, len(curve.budgets), -(-len(curve.budgets) // 9))
    panel.set_xticks([curve.budgets[i] for i in shown], [curve.budget_texts[i] for i in shown])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel(curve.budget_label)
    panel.set_ylabel("tokens/s")
    panel.set_title(curve.title, loc="left", fontsize="medium", weight="bold")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#d8dde3", linewidth=0.6)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
