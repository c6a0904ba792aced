"""The results of the checks of a GPU: rows of a table, and the table as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One answer or figure. `met` is None where there is no goal."""

    section: str
    name: str
    result: str
    goal: str = ""
    met: bool | None = None
    note: str = ""


@dataclass
class Report:
    """All rows of one run, and the machine and software that they depend on."""

    facts: dict[str, str]
    # If not set, goals of figures are shown but not judged: on a fake GPU, speeds mean nothing.
    judges_figures: bool = True
    rows: list[Row] = field(default_factory=list)

    def add(self, section: str, found: dict[str, Any]) -> None:
        """Adds a line of gpu_probe, or of a child of this package."""
        result, goal, met = found.get("answer", ""), "", None
        if "value" in found:
            result = f"{found['value']:.4g} {found.get('unit', '')}".strip()
            if "at_least" in found:
                goal, met = f"≥ {found['at_least']:g}", found["value"] >= found["at_least"]
            if "at_most" in found:
                goal, met = f"≤ {found['at_most']:g}", found["value"] <= found["at_most"]
            if not self.judges_figures:
                met = None
        if "met" in found:
            goal, met = found.get("goal", "yes"), bool(found["met"])
        self.rows.append(Row(section, found["name"], result, goal, met, found.get("note", "")))

    def fail(self, section: str, name: str, why: str) -> None:
        """Adds a row for a check that could not be made, with the last lines of the reason."""
        last = " / ".join(line.strip() for line in why.strip().splitlines()[-3:])
        self.rows.append(Row(section, name, "FAILED", "", False, last[-400:]))

    @property
    def missed(self) -> list[Row]:
        """The rows that missed their goal or failed."""
        return [row for row in self.rows if row.met is False]

    def as_json(self) -> str:
        """All facts and rows, as JSON."""
        return json.dumps({"facts": self.facts, "rows": [asdict(r) for r in self.rows]}, indent=1)

    def as_markdown(self) -> str:
        """The table, in the format of docs/gpu/."""
        lines = [f"# memtide on {self.facts.get('device', 'a GPU')}, {self.facts.get('date')}", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += ["", f"{len(self.rows)} rows, {len(self.missed)} of them missed or failed.", ""]
        section = ""
        for row in self.rows:
            if row.section != section:
                section = row.section
                lines += ["", f"## {section}", "", "| what | found | goal | |", "|---|---|---|---|"]
            mark = {None: "", True: "met", False: "**missed**"}[row.met]
            note = f" ({row.note})" if row.note else ""
            cells = [row.name, row.result + note, row.goal, mark]
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        return "\n".join(lines) + "\n"
