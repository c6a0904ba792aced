"""Parses sizes such as "1.5GiB" and "512M", and formats numbers of bytes."""

from __future__ import annotations

import re

from memtide.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kib": 2**10,
    "kb": 10**3,
    "m": 2**20,
    "mib": 2**20,
    "mb": 10**6,
    "g": 2**30,
    "gib": 2**30,
    "gb": 10**9,
    "t": 2**40,
    "tib": 2**40,
    "tb": 10**12,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_size(text: str) -> int:
    """Bytes of a size: "2GiB" and "512M" are binary, "1.5GB" is decimal, "4096" is bytes."""
    match = _SIZE.fullmatch(text.strip())
    if not match or match[2].lower() not in _UNITS:
        raise UsageError(f"'{text}' is not a size; write for example 512MiB, 2GiB or 1.5GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_size(size_bytes: float) -> str:
    """A size with at most three digits: "0 B", "12 KiB", "1.25 GiB"."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1024, larger
    if unit == "B" or abs(value) >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if abs(value) >= 10 else f"{value:.2f} {unit}"
