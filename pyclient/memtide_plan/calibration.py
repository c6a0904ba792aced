"""The constants of the planner that no specification sheet says: data/calibration.json.

They are few and physical, and each says where it comes from. bench/plan/calibrate.py fits those
that are fitted, to the rows that are marked for it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("data") / "calibration.json"

_tried: dict[str, float] = {}


def constant(name: str) -> float:
    """The value of a constant. REQUIRES: it is in the file."""
    if name in _tried:
        return _tried[name]
    return float(document()[name]["value"])


def unfitted() -> dict[str, float]:
    """The values of the fitted constants before they were fitted: those of a planner that knows
    specification sheets, and no row."""
    return {
        name: float(entry["unfitted"]) for name, entry in document().items() if "unfitted" in entry
    }


@functools.cache
def document() -> Mapping[str, Mapping[str, Any]]:
    """All constants: for each, its value, its unit, and where it comes from."""
    read: Mapping[str, Mapping[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return read


@contextmanager
def tried(values: Mapping[str, float]) -> Iterator[None]:
    """Other values within the block, for a fit. Not for several threads at once."""
    before = dict(_tried)
    _tried.update(values)
    try:
        yield
    finally:
        _tried.clear()
        _tried.update(before)
