"""The colours of the tide picture, as an image and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from memtide._trace.residency import Residency, Row

COLOURS = {
    "parameter": "#2f6fb5",
    "gradient": "#e08a2e",
    "optimizer_state": "#4a9d6f",
    "activation": "#dd9b95",
    "other": "#7a6fb0",
}
# Activations that are kept are dark, and those that have moved into chunks are light.
OWN_COLOURS = {"activations": "#b5524a", "host": "#9aa5b1", "device": "#5b7083"}
RANK_COLOURS = {"leased": "#5b9aa0", "own": OWN_COLOURS["host"]}
# Sample.waits_s.
WAIT_LABELS = {
    "call": "the daemon's answers",
    "map": "mapping",
    "unmap": "waiting to unmap",
    "gradients": "moving gradients",
    "dispatch": "dispatch",
}
RANK_LABELS = {"leased": "leased chunks", "own": "outside chunks"}
LIMIT_COLOURS = {"budget": "#28323c", "pool limit": "#7b8794"}
PHASE_COLOURS = {"forward": "#eef4fb", "backward": "#fdf3e7", "step": "#edf7f0"}


def label_of(kind: str) -> str:
    """The picture's name for chunks of a kind."""
    return "moved activations" if kind == "activation" else kind.replace("_", " ")


# More rows of chunks than these would be thinner than a pixel.
_MOST_ROWS = 256


def colour_of(row: Row) -> str:
    """The colour of a chunk. Traces write kinds with spaces."""
    return COLOURS.get(row.kind.replace(" ", "_"), COLOURS["other"])


def drawn_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that the picture has: all, or of many every second, third and so on."""
    return rows[:: -(-len(rows) // _MOST_ROWS) or 1]


def staying_label(residency: Residency) -> str:
    """How many chunks stay."""
    return f"{residency.staying} of {len(residency.rows)} chunks stay on the {residency.tier}"
