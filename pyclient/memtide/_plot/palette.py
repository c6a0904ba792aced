"""The colours of the tide picture, as an image and as a page."""

from __future__ import annotations

COLOURS = {
    "parameter": "#2f6fb5",
    "gradient": "#e08a2e",
    "optimizer_state": "#4a9d6f",
    "activation": "#b5524a",
    "other": "#7a6fb0",
}
OWN_COLOURS = {"activations": COLOURS["activation"], "host": "#9aa5b1", "device": "#5b7083"}
LIMIT_COLOURS = {"budget": "#28323c", "pool limit": "#7b8794"}
PHASE_COLOURS = {"forward": "#eef4fb", "backward": "#fdf3e7", "step": "#edf7f0"}
