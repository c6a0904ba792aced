"""The table of docs/compatibility.md. Pure: what was measured comes in as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

_MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Row:
    """One program, or one optimizer."""

    name: str
    version: str
    plain_s: float | None  # A step.
    memtide_s: float | None
    losses: str
    stepped_by: str
    passed: bool
    may_fold: bool = False  # If its losses are equal, it shares a row with others like it.

    @property
    def ratio(self) -> float:
        """The time under memtide by the plain one; 0: one is not known."""
        return self.memtide_s / self.plain_s if self.plain_s and self.memtide_s else 0.0


def apart_by(some: list[str], others: list[str]) -> float | None:
    """The largest difference of two runs' losses, as a part of the largest loss, as some trainers'
    losses are about 0; None: they are not as many."""
    if len(some) != len(others):
        return None
    pairs = list(zip(map(float, some), map(float, others), strict=True))
    largest = max((abs(a) for a, _ in pairs), default=0.0)
    return max(abs(b - a) for a, b in pairs) / largest if largest else 0.0


def are_close(plain: list[str], ours: list[str]) -> bool:
    """Whether a run passes."""
    apart = apart_by(plain, ours)
    return apart is not None and apart <= _TOLERANCE


def compared(plain: list[str], ours: list[str], again: list[str], failure: str) -> str:
    """The table's words about losses: `again` are those of the plain program, run once more."""
    if plain == ours:
        return f"{len(plain)} equal"
    apart = apart_by(plain, ours)
    if apart is None:
        return f"{len(ours)} of {len(plain)}: {failure}"
    repeated = apart_by(plain, again)
    return f"{apart:.1e} apart" + (f"; plain runs {repeated:.1e}" if repeated else "")


def folded(rows: Iterable[Row]) -> list[Row]:
    """The rows, with those of a library's less known optimizers that are equal as one."""
    shown: list[Row] = []
    rest: dict[str, list[Row]] = {}
    for row in rows:
        if row.may_fold and row.losses.endswith("equal"):
            rest.setdefault(row.name.partition(" ")[0], []).append(row)
        else:
            shown.append(row)
    for library, others in rest.items():
        middle = sorted(others, key=lambda row: row.ratio)[len(others) // 2]
        name = f"{library}, {len(others)} others (times: the row of the median ratio)"
        shown.append(replace(middle, name=name, losses="each equal"))
    return shown


def table(rows: Iterable[Row], not_run: Iterable[tuple[str, str]]) -> str:
    """The rows, and what was not run, in Markdown."""
    lines = [
        "| program | version | plain step | memtide step | ratio | losses | step by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in folded(rows):
        times = [f"{s * 1e3:,.0f} ms" if s else "" for s in (row.plain_s, row.memtide_s)]
        ratio = f"{row.ratio:.1f}x" if row.ratio else ""
        cells = [row.name, row.version, *times, ratio, row.losses, row.stepped_by]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| not run | why |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {why} |" for name, why in not_run)])


def write(path: Path, text: str) -> None:
    """Puts the table between the markers of a document."""
    document = path.read_text(encoding="utf-8")
    begin, end = (document.index(marker) for marker in _MARKERS)
    before, after = document[: begin + len(_MARKERS[0])], document[end:]
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")
