"""The prediction for each row, written before any run (predictions.json), by part and row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).resolve().parent / "predictions.json"


@dataclass(frozen=True)
class Prediction:
    """An answer or a range of figures in `unit`, and the name of what it is derived from."""

    says: str
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.says} {self.unit}".strip()


@dataclass(frozen=True)
class Predictions:
    """The predictions by part and row, and the sources that they name."""

    by_part: dict[str, dict[str, Prediction]]
    sources: dict[str, str]

    @classmethod
    def read(cls, path: Path = _FILE) -> Predictions:
        """ValueError, KeyError or TypeError: the file is not of the form that is expected."""
        found = json.loads(path.read_text(encoding="utf-8"))
        by_part = {
            part: {name: Prediction(*fields) for name, fields in rows.items()}
            for part, rows in found["rows"].items()
        }
        return cls(by_part, found["sources"])

    def of(self, part: str, row: str) -> str:
        """The prediction as text; empty: there is none."""
        found = self.by_part.get(part, {}).get(row)
        return "" if found is None else str(found)
