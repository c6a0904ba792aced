"""The console on which memtide prints tables."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

_WIDEST = 1000


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr. With NO_COLOR, rich itself still prints bold and dim text."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")


def print_whole(console: Console, table: Table) -> None:
    """Prints a table none of whose cells is cut off; its lines may be wider than the terminal."""
    wide = console.options.update(max_width=_WIDEST)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
