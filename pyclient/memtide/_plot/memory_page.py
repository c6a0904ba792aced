"""The interactive tide picture: one HTML file that needs no network and no library.

A script in the template (memory_page.html) draws the picture from the numbers that `page` inserts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memtide._plot.palette import (
    COLOURS,
    LIMIT_COLOURS,
    OWN_COLOURS,
    PHASE_COLOURS,
    RANK_COLOURS,
    RANK_LABELS,
    WAIT_LABELS,
    colour_of,
    drawn_rows,
    label_of,
    staying_label,
)
from memtide._telemetry.memory_timeline import Tide
from memtide._trace.residency import Residency

_TEMPLATE = Path(__file__).with_name("memory_page.html")


def page(tide: Tide, residency: Residency | None = None) -> str:
    """The HTML text of the page. A residency of another iteration than the tide's is left out.
    REQUIRES: the tide has a sample."""
    numbers = json.dumps(
        {**_numbers(tide), "residency": _rows(tide, residency)}, separators=(",", ":")
    ).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("{{DATA}}", numbers)


def _numbers(tide: Tide) -> dict[str, Any]:
    samples = tide.samples
    phases = list(PHASE_COLOURS)
    names = sorted({sample.name for sample in samples})
    index = {name: i for i, name in enumerate(names)}
    first_s = samples[0].seconds
    return {
        "iteration": tide.iteration,
        "ms": [round(1e3 * (sample.seconds - first_s), 2) for sample in samples],
        "end_ms": round(1e3 * (samples[-1].seconds - first_s), 2),
        "phases": [{"name": phase, "colour": PHASE_COLOURS[phase]} for phase in phases],
        "phase": [phases.index(sample.phase) for sample in samples],
        "names": names,
        "name": [index[sample.name] for sample in samples],
        "stalled_ms": [round(1e3 * stall_s, 1) for stall_s in tide.stalls_s()],
        "waits": _waits(tide),
        "tiers": [
            {
                "name": tier,
                "kinds": [
                    {"name": label_of(kind), "colour": COLOURS[kind], "kib": _kib(sizes)}
                    for kind, sizes in tide.kinds(tier).items()
                ],
                "lines": [
                    {
                        "name": label,
                        "colour": LIMIT_COLOURS[label],
                        "dashed": label == "pool limit",
                        "kib": _kib(sizes),
                    }
                    for label, sizes in tide.limits(tier).items()
                ],
            }
            for tier in tide.tiers()
        ],
        "own": [
            {"name": where, "colour": OWN_COLOURS[where], "kib": _kib(sizes)}
            for where, sizes in tide.own().items()
        ],
        "ranks": [
            {
                "name": f"rank {rank}",
                "uses": [
                    {
                        "name": RANK_LABELS[name],
                        "colour": RANK_COLOURS[name],
                        "kib": _kib(sizes),
                    }
                    for name, sizes in uses.items()
                ],
            }
            for rank, uses in tide.ranks().items()
        ],
    }


def _waits(tide: Tide) -> list[dict[str, Any]]:
    return [
        {
            "name": WAIT_LABELS[name],
            "ms": [round(1e3 * wait_s, 2) for wait_s in waits_s],
            # From one operation of several: right in sum, not for a moment.
            "sampled": name == "dispatch",
        }
        for name, waits_s in tide.waits_s().items()
    ]


def _rows(tide: Tide, residency: Residency | None) -> dict[str, Any] | None:
    if residency is None or not tide.is_like(residency.phases):
        return None
    return {
        "name": f"on {residency.tier}, by chunk: {staying_label(residency)}",
        "rows": [
            {"number": row.number, "colour": colour_of(row), "spans": row.spans}
            for row in drawn_rows(residency.rows)
        ],
    }


def _kib(sizes: Iterable[int]) -> list[int]:
    return [round(size / 1024) for size in sizes]
