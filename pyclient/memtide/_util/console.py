"""The console on which memtide prints tables."""

from __future__ import annotations

import os

from rich.console import Console


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr. With NO_COLOR, rich itself still prints bold and dim text."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
