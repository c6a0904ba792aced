"""Part: some checks that are made, timed and kept together. A failed part does not end the others.

The rows of a part are written to a file as soon as it is done, so that a run that was interrupted
can go on, and one part can be repeated; the table is made of these files.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_check.home import Home
from gpu_check.rows import failed

LONGEST_S = 480  # The limit of any part.
# The limits of all parts of a group together: a command on a lent card has 10 minutes, and two of
# them 15.
LONGEST_ESSENTIAL_S, LONGEST_FRONTIER_S = 570, 330


@dataclass(frozen=True)
class Bench:
    """The memtide that a part runs with, and a folder for what later parts use."""

    home: Home
    out: Path

    def rows_of(self, part: str) -> list[dict[str, Any]]:
        """The rows of a part that is done; none, if it is not."""
        file = _file(self.out, part)
        if not file.exists():
            return []
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return rows


@dataclass(frozen=True)
class Part:
    """`run` yields rows (rows.py says what is in one) and may raise what `_WHY` names."""

    name: str
    asks: str
    limit_s: int
    run: Callable[[Bench], Iterable[dict[str, Any]]]
    essential: bool = False  # For the first command on a card.
    frontier: bool = False  # For the second one.
    peer: bool = False  # Compares with another program, which is asked for with --peer.


# The errors that the world can cause, and those that a mistake in a part causes.
_WHY = (
    OSError,
    RuntimeError,
    subprocess.SubprocessError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
)


def run_part(part: Part, bench: Bench) -> list[dict[str, Any]]:
    """Runs a part within its limit, writes its file, and returns its rows. Rows that it has found
    before it failed are kept."""
    start = time.monotonic()
    bench.home.deadline = start + part.limit_s
    rows: list[dict[str, Any]] = []
    try:
        for row in part.run(bench):
            rows.append(row)
    except subprocess.TimeoutExpired as late:
        errors = _text(late.stderr)
        rows.append(failed(f"all of {part.name}", f"not done in {part.limit_s} s\n{errors}"))
    except _WHY as error:
        rows.append(failed(f"all of {part.name}", f"{type(error).__name__}: {error}"))
    file = _file(bench.out, part.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    took_s = round(time.monotonic() - start, 1)
    unfinished.write_text(
        json.dumps({"part": part.name, "took_s": took_s, "rows": rows}, indent=1) + "\n",
        encoding="utf-8",
    )
    unfinished.rename(file)
    return rows


def lines(text: str) -> Iterator[dict[str, Any]]:
    """The rows in the output of a program that prints one a line, in JSON."""
    for line in text.splitlines():
        yield json.loads(line)


def _file(out: Path, part: str) -> Path:
    return out / "parts" / f"{part}.json"


def is_done(out: Path, part: str) -> bool:
    """Whether the part's file is there."""
    return _file(out, part).exists()


def forget(out: Path, parts: Iterable[str]) -> None:
    """Removes the files of parts."""
    for part in parts:
        _file(out, part).unlink(missing_ok=True)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
