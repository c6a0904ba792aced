"""Draws the tide picture: the memory of one iteration, moment by moment."""

from __future__ import annotations

import importlib.util
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from memtide._plot import memory_page
from memtide._plot.palette import (
    COLOURS,
    LIMIT_COLOURS,
    OWN_COLOURS,
    PHASE_COLOURS,
    RANK_COLOURS,
    RANK_LABELS,
    colour_of,
    drawn_rows,
    label_of,
    staying_label,
)
from memtide._telemetry.memory_timeline import Sample, Tide
from memtide._trace.residency import Residency
from memtide._util.output_file import check_writable
from memtide.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
# A limit of more than this many times the highest bytes is not drawn: it would flatten them.
_MOST_LIMIT = 4
_SHORTEST_STALL_S = 1e-3
_SUFFIXES = (".png", ".svg", ".pdf", ".html")


def check_output(path: Path) -> None:
    """UsageError: `draw` cannot write to this path, or does not know the format of its suffix."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"the tide is drawn as {' or '.join(_SUFFIXES)}: '{path}' is none of them")
    if path.suffix != ".html" and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"'{path}' needs matplotlib, which is not installed; .html needs nothing")
    check_writable(path)


def draw(tide: Tide, path: Path, residency: Residency | None = None) -> None:
    """Writes the picture to `path`: an interactive page if its suffix is .html, else an image.

    There is one panel for each tier: the bytes on it, stacked by kind, and the budget, which is
    what the job may fill at that moment. The next panel is the process's memory outside chunks
    (activations, workspaces, Python). Where ranks share a job, each has a panel below, with the
    chunks that it leases and its memory outside them. With `residency`, of an iteration with the
    moments of this one, the last panel has a row for each chunk: coloured while it is on the
    fastest tier, so that a full row is a chunk that stays, and a gap is one that leaves and comes
    back. Another iteration's residency is not drawn. Bands mark forward, backward and step of this
    process. The red bars at the bottom are stalls.
    """
    if path.suffix == ".html":
        path.write_text(memory_page.page(tide, residency), encoding="utf-8")
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    tiers, ranks = tide.tiers(), tide.ranks()
    has_rows = residency is not None and tide.is_like(residency.phases)
    figure, panels = pyplot.subplots(
        len(tiers) + 1 + len(ranks) + has_rows,
        1,
        sharex=True,
        squeeze=False,
        figsize=(12, 2.2 + 2.4 * (len(tiers) + has_rows) + 1.3 * len(ranks)),
        height_ratios=[*([3] * len(tiers)), *([1.6] * (1 + len(ranks))), *([3] * has_rows)],
        layout="constrained",
    )
    moments = [sample.seconds for sample in tide.samples]
    axes = [row[0] for row in panels]
    for panel, tier in zip(axes, tiers, strict=False):
        _draw_tier(panel, tide, tier, moments)
    _draw_own(axes[len(tiers)], tide, moments)
    for panel, (rank, uses) in zip(axes[len(tiers) + 1 :], ranks.items(), strict=False):
        _draw_rank(panel, rank, uses, moments, labelled=rank == min(ranks))
    if residency is not None and has_rows:
        _draw_residency(axes[-1], residency, moments)
    for panel in axes:
        _draw_phases(panel, tide.samples, labelled=panel is axes[0])
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_yticks().size:
            panel.grid(axis="y", color="#d8dde3", linewidth=0.6)
        panel.set_axisbelow(True)
        _draw_stalls(panel, tide, labelled=panel is axes[0])
    axes[-1].set_xlabel(f"seconds in iteration {tide.iteration}")
    figure.suptitle("The memory tide of one training step", x=0.01, ha="left", weight="bold")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper right",
        ncols=len(labels),
        frameon=False,
        columnspacing=1,  # The title is to its left.
        handlelength=1.2,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_tier(panel: Axes, tide: Tide, tier: str, moments: list[float]) -> None:
    kinds = tide.kinds(tier)
    layers = [[size / _MIB for size in sizes] for sizes in kinds.values()]
    if layers:
        panel.stackplot(
            moments,
            *layers,
            labels=[label_of(kind) for kind in kinds],
            colors=[COLOURS[kind] for kind in kinds],
            linewidth=0,
            step="post",
        )
    highest = max((sum(column) for column in zip(*layers, strict=True)), default=0.0)
    top = max(highest, 1)
    for label, values in tide.limits(tier).items():
        line = [value / _MIB for value in values]
        if max(line) <= _MOST_LIMIT * max(highest, 1):
            top = max(top, *line)
            panel.step(
                moments,
                line,
                where="post",
                color=LIMIT_COLOURS[label],
                linewidth=1.2,
                linestyle="--" if label == "pool limit" else "-",
                label=label,
            )
    panel.set_ylim(0, 1.15 * top)
    panel.set_ylabel(f"{tier}, MiB")


def _draw_own(panel: Axes, tide: Tide, moments: list[float]) -> None:
    own_bytes = tide.own()
    panel.stackplot(
        moments,
        *([value / _MIB for value in values] for values in own_bytes.values()),
        labels=[f"own {where}" for where in own_bytes] if len(own_bytes) > 1 else [],
        colors=[OWN_COLOURS[where] for where in own_bytes],
        step="post",
        linewidth=0,
    )
    panel.set_ylim(0, 1.2 * max(map(sum, zip(*own_bytes.values(), strict=True)), default=1) / _MIB)
    panel.set_ylabel("outside\nchunks, MiB")
    if len(own_bytes) > 1:
        panel.legend(loc="center left", frameon=False)


def _draw_rank(
    panel: Axes, rank: int, uses: dict[str, list[int]], moments: list[float], *, labelled: bool
) -> None:
    layers = [[size / _MIB for size in sizes] for sizes in uses.values()]
    panel.stackplot(
        moments,
        *layers,
        labels=[RANK_LABELS[name] for name in uses] if labelled else [],
        colors=[RANK_COLOURS[name] for name in uses],
        step="post",
        linewidth=0,
    )
    panel.set_ylim(0, 1.2 * max(map(sum, zip(*layers, strict=True)), default=1))
    panel.set_ylabel(f"rank {rank},\nMiB")
    if labelled:
        panel.legend(loc="center left", frameon=False)


def _draw_residency(panel: Axes, residency: Residency, moments: list[float]) -> None:
    bounds = [*moments, moments[-1]]
    rows = drawn_rows(residency.rows)
    for index, row in enumerate(rows):
        spans = [(bounds[first], bounds[end] - bounds[first]) for first, end in row.spans]
        panel.broken_barh(spans, (index, 0.9), facecolor=colour_of(row), linewidth=0)
    panel.set_ylim(len(rows), 0)
    panel.set_yticks([])
    panel.set_ylabel(f"on {residency.tier},\nby chunk")
    panel.set_title(staying_label(residency), loc="right", fontsize="small", color="#52606d")


def _draw_phases(panel: Axes, samples: list[Sample], *, labelled: bool) -> None:
    bands = [(phase, list(group)) for phase, group in groupby(samples, key=lambda s: s.phase)]
    end = samples[-1].seconds
    whole = max(end - samples[0].seconds, 1e-9)
    for index, (phase, group) in enumerate(bands):
        start = group[0].seconds
        stop = bands[index + 1][1][0].seconds if index + 1 < len(bands) else end
        panel.axvspan(start, stop, color=PHASE_COLOURS[phase], zorder=0, linewidth=0)
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


def _draw_stalls(panel: Axes, tide: Tide, *, labelled: bool) -> None:
    samples, stalls = tide.samples, tide.stalls_s()
    shortest = 0.001 * (samples[-1].seconds - samples[0].seconds)
    # A moment leases its chunks, and so stalls, when it begins.
    spans = [
        (now.seconds, max(shortest, min(stalled, following.seconds - now.seconds)))
        for now, following, stalled in zip(samples, samples[1:], stalls, strict=False)
        if stalled > _SHORTEST_STALL_S
    ]
    if spans:
        panel.broken_barh(
            spans,
            (0, 0.05),
            transform=panel.get_xaxis_transform(),
            facecolor="#c0392b",
            linewidth=0,
            zorder=3,
            label=f"stalled, {sum(stalls):.2f} s" if labelled else None,
        )
