"""The figures of gpu-check's training rows that are expected on some machines, from a simple model.

    python3 -m gpu_check.expect      prints the table of docs/gpu/README.md

The machines' speeds are in predictions.json. A figure is good to half of it, not better.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).resolve().parent / "predictions.json"
# The model of the part quarter: blocks and width of the GPT, and bytes of an element.
_LAYERS, _WIDTH, _ELEMENT_BYTES = 24, 2048, 2
_PARAMETERS = _LAYERS * 12 * _WIDTH**2
_STATE_BYTES = 4 * _ELEMENT_BYTES * _PARAMETERS
# Bytes that torch's AdamW moves in the card's memory for a parameter, in the passes of foreach.
_UPDATE_BYTES = 70
# Bytes that the daemon's step reads and writes in host memory for a parameter, and the part of the
# step that is left after backward.
_STEP_BYTES, _AFTER_BACKWARD = 14, 0.8
# Bytes over the link in a step, as parts of all states, in a pool of a quarter. Where torch steps,
# those of both directions, as docs/gpu/h100-2026-11-26.md counts chunks: 182 and 145 of 144. Else
# those of the larger direction: parameters come twice, less what stays.
_EXACT_MOVES, _STEPPED_MOVES = 2.27, 0.41
# The time in which nothing is copied: the training thread maps 245 chunks, waits for 190 calls, and
# moves 293 gradients, at 0.2 to 0.3 ms each.
_EXACT_SERIAL_S = 0.17
# The time of dispatch in Python in a step on a core of a server, of which the kernels hide some.
_DISPATCH_S = 0.11


@dataclass(frozen=True)
class Machine:
    """A card and its host. Rates are what training sustains, in units of 1e12 and 1e9 a second."""

    name: str
    tokens: int  # In a step.
    tflops: float
    memory_gb_s: float
    link_gb_s: float  # One way.
    both_gb_s: float  # Both ways at once.
    host_gb_s: float

    @property
    def compute_s(self) -> float:
        """Forward and backward."""
        return 6 * _PARAMETERS * self.tokens / (self.tflops * 1e12)

    @property
    def plain_s(self) -> float:
        """A step of plain torch."""
        return self.compute_s + _UPDATE_BYTES * _PARAMETERS / (self.memory_gb_s * 1e9)

    @property
    def fits_s(self) -> float:
        """A step where all fits and every operation is dispatched in Python, as the first ones."""
        return max(self.plain_s, _DISPATCH_S + self.plain_s - self.compute_s)

    @property
    def exact_s(self) -> float:
        """A step in a quarter, to the bit."""
        moving = _EXACT_MOVES * _STATE_BYTES / (self.both_gb_s * 1e9)
        return max(self.plain_s, moving) + _EXACT_SERIAL_S

    @property
    def stepped_s(self) -> float:
        """A step in a quarter, in parts."""
        moving = _STEPPED_MOVES * _STATE_BYTES / (self.link_gb_s * 1e9)
        arithmetic = _STEP_BYTES * _PARAMETERS / (self.host_gb_s * 1e9)
        return max(self.compute_s, moving) + _AFTER_BACKWARD * arithmetic


def machines() -> list[Machine]:
    """The machines of predictions.json."""
    return [Machine(**each) for each in json.loads(_FILE.read_text(encoding="utf-8"))["machines"]]


def table() -> str:
    """The table, in Markdown."""
    rows = [
        "| machine | tokens a step | TFLOP/s, GB/s of card, link, both ways, host | plain | "
        "fits / plain | 1/4, torch steps | 1/4, steps in parts |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in machines():
        speeds = (each.memory_gb_s, each.link_gb_s, each.both_gb_s, each.host_gb_s)
        rates = ", ".join(f"{speed:g}" for speed in (each.tflops, *speeds))
        cells = [each.name, f"{each.tokens:,}", rates, f"{each.plain_s * 1e3:.0f} ms"]
        cells.append(f"{each.fits_s / each.plain_s:.1f}")
        for ours in (each.exact_s, each.stepped_s):
            cells.append(f"{ours * 1e3:.0f} ms, {ours / each.plain_s:.1f} x")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
