"""The results of the checks of a GPU: rows of a table, and the table as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_check.predictions import Predictions


@dataclass(frozen=True)
class Row:
    """One answer or figure. `met` is None where there is no goal."""

    section: str
    name: str
    result: str
    goal: str = ""
    met: bool | None = None
    note: str = ""
    predicted: str = ""


@dataclass
class Report:
    """All rows of one run, and the machine and software that they depend on."""

    facts: dict[str, str]
    predictions: Predictions
    # If not set, goals of figures are shown but not judged: on a fake GPU, speeds mean nothing.
    judges_figures: bool = True
    rows: list[Row] = field(default_factory=list)

    def add_part(self, part: str, found: list[dict[str, Any]]) -> None:
        """Adds the rows of a part. One that was not predicted is missed: what is predicted after a
        run says nothing about the one who predicts."""
        for each in found:
            row = self._row(part, each)
            if not each.get("failed") and not row.predicted:
                unexpected = "no prediction of it is in predictions.json"
                row = Row(part, row.name, row.result, "a prediction", False, unexpected)
            self.rows.append(row)

    def _row(self, part: str, found: dict[str, Any]) -> Row:
        result, goal, met = found.get("answer", ""), "", None
        if "value" in found:
            result = f"{found['value']:.4g} {found.get('unit', '')}".strip()
            for key, sign, holds in _BOUNDS:
                if key in found:
                    goal = f"{sign} {found[key]:g}"
                    met = holds(found["value"], found[key]) if self.judges_figures else None
        if "met" in found:
            goal, met = found.get("goal", "yes"), bool(found["met"])
        if found.get("failed"):
            result, goal, met = "FAILED", "", False
        predicted = self.predictions.of(part, found["name"])
        return Row(part, found["name"], result, goal, met, found.get("note", ""), predicted)

    @property
    def missed(self) -> list[Row]:
        """The rows that missed their goal or failed."""
        return [row for row in self.rows if row.met is False]

    def as_json(self) -> str:
        """All facts and rows, as JSON."""
        return json.dumps({"facts": self.facts, "rows": [asdict(r) for r in self.rows]}, indent=1)

    def as_markdown(self, titles: dict[str, str]) -> str:
        """The table, in the format of docs/gpu/. `titles`: of the parts, by their names."""
        lines = [f"# memtide on {self.facts.get('device', 'a GPU')}, {self.facts.get('date')}", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += ["", f"{len(self.rows)} rows, {len(self.missed)} of them missed or failed.", ""]
        section = ""
        for row in self.rows:
            if row.section != section:
                section = row.section
                lines += ["", f"## {titles.get(section, section)}", ""]
                lines += ["| what | predicted | found | goal | |", "|---|---|---|---|---|"]
            mark = {None: "", True: "met", False: "**missed**"}[row.met]
            note = f" ({row.note})" if row.note else ""
            cells = [row.name, row.predicted, row.result + note, row.goal, mark]
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        return "\n".join(lines) + "\n"


def failed(name: str, why: str) -> dict[str, Any]:
    """A row for a check that could not be made, with the last lines of the reason."""
    last = " / ".join(line.strip() for line in why.strip().splitlines()[-3:])
    return {"name": name, "failed": True, "note": last[-400:]}


def skipped(name: str, why: str) -> dict[str, Any]:
    """A row for a check that this machine cannot make."""
    return {"name": name, "answer": "skipped", "note": why}


_BOUNDS: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("at_least", "≥", lambda value, bound: value >= bound),
    ("at_most", "≤", lambda value, bound: value <= bound),
)
