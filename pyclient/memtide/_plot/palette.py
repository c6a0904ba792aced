"""The colours of the tide picture, as an image and as a page."""

from __future__ import annotations

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
RANK_LABELS = {"leased": "leased chunks", "own": "outside chunks"}
LIMIT_COLOURS = {"budget": "#28323c", "pool limit": "#7b8794"}
PHASE_COLOURS = {"forward": "#eef4fb", "backward": "#fdf3e7", "step": "#edf7f0"}


def label_of(kind: str) -> str:
    """What the picture calls chunks of a kind."""
    return "moved activations" if kind == "activation" else kind.replace("_", " ")
