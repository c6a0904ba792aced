"""The measurements of others: data/rows.jsonl, one row a line, each with its source, all inputs,
the figure that was published and the tolerance within which a prediction counts as right.

A row has `counted` where its source publishes all inputs; the others are predicted where they can
be, and never counted. A row has `calibration` where constants of data/calibration.json are fitted
to it. Figures are typed in; no file of others is copied.

InvalidArgument: a line is wrong. The error says the file, the line, and what is wrong with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtide.errors import InvalidArgument

PATH = Path(__file__).with_name("data") / "rows.jsonl"

# Figures that are compared as numbers, and "fits", which is true or false.
NUMBERS = (
    "step_s",
    "tokens_per_s",
    "device_bytes",
    "host_bytes",
    "drive_years",
    "ratio",  # This row's tokens a second, over those of the row that the figure names.
)
FITS = "fits"

_MOST_ROWS = 10_000
_MOST_LINE_BYTES = 1 << 14
_TEXTS = ("id", "source", "where", "block", "system")
_OBJECTS = ("training", "machine", "figure")
_FLAGS = ("counted", "calibration")
_KEYS = frozenset((*_TEXTS, *_OBJECTS, *_FLAGS, "model", "tolerance", "note"))
_FIGURE_KEYS = frozenset(("kind", "value", "of"))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The published figure: a number in the unit of its kind, or whether a model fits."""

    kind: str
    value: float  # 1 and 0 for "fits".
    of: str | None = None  # The row that a ratio is to.


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement of others. Its model, training and machine are as the file has them;
    row_inputs.py makes a question of them."""

    id: str
    source: str
    where: str  # In the source.
    block: str
    model: Mapping[str, Any] | None  # None: its shape is not published.
    training: Mapping[str, Any]
    machine: Mapping[str, Any]
    system: str  # Whose way of working was measured.
    figure: Figure
    tolerance: float  # Relative.
    counted: bool
    calibration: bool
    note: str = ""


def load(path: Path = PATH) -> tuple[Row, ...]:
    """All rows of a file, in the order of its lines."""
    rows: dict[str, Row] = {}
    for where, row in _rows_of(path):
        if row.id in rows:
            raise InvalidArgument(f"{where}: another row is called '{row.id}', too")
        rows[row.id] = row
    if not rows:
        raise InvalidArgument(f"{path} has no rows, one a line")
    for row in rows.values():
        if row.figure.of is not None and row.figure.of not in rows:
            raise InvalidArgument(
                f"row '{row.id}' is compared with '{row.figure.of}', which is none"
            )
    return tuple(rows.values())


def _rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    lines = path.read_bytes().splitlines()
    if len(lines) > _MOST_ROWS:
        raise InvalidArgument(
            f"{path.name} has {len(lines)} rows, and at most {_MOST_ROWS} are read"
        )
    for number, line in enumerate(lines, 1):
        where = f"{path.name}:{number}"
        if len(line) > _MOST_LINE_BYTES:
            raise InvalidArgument(f"{where}: a row has at most {_MOST_LINE_BYTES} bytes")
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{where}: this is not JSON: {error}") from None
        yield where, _row(document, where)


def _row(document: Any, where: str) -> Row:
    if not isinstance(document, dict):
        raise InvalidArgument(f"{where}: a row is an object, and this is {_short(document)}")
    if unknown := next((key for key in document if key not in _KEYS), None):
        raise InvalidArgument(f"{where}: a row has no '{unknown}'")
    if missing := next((key for key in sorted(_KEYS - {"note"}) if key not in document), None):
        raise InvalidArgument(f"{where}: '{missing}' is missing")
    kinds = (
        (_TEXTS, str, "a text"),
        (_OBJECTS, dict, "an object"),
        (_FLAGS, bool, "true or false"),
    )
    for keys, kind, wanted in kinds:
        for key in keys:
            if not isinstance(document[key], kind) or document[key] == "":
                raise _wrong(where, key, document[key], wanted)
    if document["model"] is not None and not isinstance(document["model"], dict):
        raise _wrong(where, "model", document["model"], "an object or null")
    if not isinstance(document.get("note", ""), str):
        raise _wrong(where, "note", document["note"], "a text")
    figure = _figure(document["figure"], where)
    tolerance = document["tolerance"]
    if not _is_number(tolerance) or not 0 <= tolerance < 1:
        raise _wrong(where, "tolerance", tolerance, "a share from 0 to 1")
    if (tolerance == 0) != (figure.kind == FITS):
        raise _wrong(where, "tolerance", tolerance, "0 for 'fits', and above it for numbers")
    row = Row(**{**document, "figure": figure, "tolerance": float(tolerance)})
    if row.counted and row.model is None:
        raise InvalidArgument(f"{where}: a row without a model cannot be counted")
    if row.calibration and not row.counted:
        raise InvalidArgument(f"{where}: a row that is not counted cannot calibrate")
    return row


def _figure(document: Mapping[str, Any], where: str) -> Figure:
    if unknown := next((key for key in document if key not in _FIGURE_KEYS), None):
        raise InvalidArgument(f"{where}: a figure has no '{unknown}'")
    kind, value, of = document.get("kind"), document.get("value"), document.get("of")
    if kind == FITS:
        if not isinstance(value, bool):
            raise _wrong(where, "figure", value, "true or false for 'fits'")
    elif kind not in NUMBERS:
        raise _wrong(where, "kind", kind, f"one of {FITS}, {', '.join(NUMBERS)}")
    elif value is None or not _is_number(value) or value <= 0:
        raise _wrong(where, "figure", value, "a number above 0")
    if (kind == "ratio") != isinstance(of, str):
        raise _wrong(where, "of", of, "a row's name for a ratio, and left out for others")
    assert value is not None
    return Figure(kind=str(kind), value=float(value), of=of)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(where: str, key: str, value: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{where}: '{key}' is {_short(value)}, and has to be {wanted}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
