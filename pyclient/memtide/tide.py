"""The picture of the memory tide: one iteration, moment by moment."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtide.node import KINDS
from memtide.stats import Sample, Tide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "own": "#9aa5b1",
    "parameter": "#2f6fb5",
    "gradient": "#e08a2e",
    "optimizer_state": "#4a9d6f",
    "activation": "#b5524a",
    "other": "#7a6fb0",
}
_PHASE_COLOURS = {"forward": "#eef4fb", "backward": "#fdf3e7", "step": "#edf7f0"}
_MIB = 2**20


def draw(tide: Tide, path: Path) -> None:
    """Writes the picture as PNG (or what the suffix of `path` says).

    One panel per tier: what lies there by kind, stacked; at the working tier the process's own
    memory (activations, workspaces, Python) is a line beside, as it is not in the pool. Bands are
    forward, backward and step; red ticks are moments that had waited for memory.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    tiers = [tier for tier in ("device", "host", "ssd") if tide.pool_bytes.get(tier)]
    figure, panels = pyplot.subplots(
        len(tiers) + 1,
        1,
        sharex=True,
        squeeze=False,
        figsize=(12, 2.2 + 2.4 * len(tiers)),
        height_ratios=[*([3] * len(tiers)), 1.6],
        layout="constrained",
    )
    moments = [sample.seconds for sample in tide.samples]
    axes = [row[0] for row in panels]
    for panel, tier in zip(axes, tiers, strict=False):
        _draw_tier(panel, tide, tier, moments)
    _draw_own(axes[-1], tide, moments)
    for panel in axes:
        _draw_phases(panel, tide.samples, labelled=panel is axes[0])
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#d8dde3", linewidth=0.6)
        panel.set_axisbelow(True)
    _draw_stalls(axes[-1], tide.samples)
    axes[-1].set_xlabel(f"seconds in iteration {tide.iteration}")
    figure.suptitle("The memory tide of one training step", x=0.01, ha="left", weight="bold")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_tier(panel: Axes, tide: Tide, tier: str, moments: list[float]) -> None:
    kinds = [
        kind
        for kind in KINDS
        if any(_bytes(sample, kind, tier) for sample in tide.samples)
        or any(_bytes(sample, kind, "allocated") for sample in tide.samples)
    ]
    layers = [[_bytes(sample, kind, tier) / _MIB for sample in tide.samples] for kind in kinds]
    panel.stackplot(
        moments,
        *layers,
        labels=[kind.replace("_", " ") for kind in kinds],
        colors=[_COLOURS[kind] for kind in kinds],
        linewidth=0,
        step="post",
    )
    limit = tide.pool_bytes[tier] / _MIB
    highest = max((sum(column) for column in zip(*layers, strict=True)), default=0.0)
    if limit <= 4 * max(highest, 1):
        panel.axhline(limit, color="#3d4650", linewidth=1.2, linestyle="--", label="pool limit")
        panel.set_ylim(0, 1.15 * max(limit, highest))
    else:
        panel.set_ylim(0, 1.15 * max(highest, 1))
    panel.set_ylabel(f"{tier}, MiB")


def _draw_own(panel: Axes, tide: Tide, moments: list[float]) -> None:
    own = [sample.own_bytes / _MIB for sample in tide.samples]
    panel.fill_between(moments, own, color=_COLOURS["own"], step="post", linewidth=0)
    panel.set_ylim(0, 1.2 * max(own, default=1))
    panel.set_ylabel("process's\nown, MiB")


def _draw_phases(panel: Axes, samples: list[Sample], *, labelled: bool) -> None:
    bands = [(phase, list(group)) for phase, group in groupby(samples, key=lambda s: s.phase)]
    end = samples[-1].seconds
    whole = max(end - samples[0].seconds, 1e-9)
    for index, (phase, group) in enumerate(bands):
        start = group[0].seconds
        stop = bands[index + 1][1][0].seconds if index + 1 < len(bands) else end
        panel.axvspan(start, stop, color=_PHASE_COLOURS[phase], zorder=0, linewidth=0)
        if labelled and stop - start > 0.04 * whole:
            panel.annotate(
                phase,
                ((start + stop) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                color="#52606d",
                weight="bold",
            )


def _draw_stalls(panel: Axes, samples: list[Sample]) -> None:
    stalled: list[Any] = [
        now.seconds
        for before, now in zip(samples, samples[1:], strict=False)
        if now.stalled_s - before.stalled_s > 1e-3
    ]
    if stalled:
        panel.plot(
            stalled,
            [0.94] * len(stalled),
            linestyle="none",
            marker="|",
            markersize=9,
            color="#c0392b",
            transform=panel.get_xaxis_transform(),
            label="waited for memory",
        )
        panel.legend(loc="center left", frameon=False)


def _bytes(sample: Sample, kind: str, tier: str) -> int:
    return sample.kinds.get(kind, {}).get(f"{tier}_bytes", 0)
