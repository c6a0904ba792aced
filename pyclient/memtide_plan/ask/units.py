"""Sizes, rates and targets as users write them. Each has a unit: a number alone is refused, as it
may be meant in bytes or in GiB.

UsageError: a text is not understood. The error names the option and what to write.
"""

from __future__ import annotations

import re

from memtide._util.sizes import format_size, parse_size
from memtide.errors import UsageError

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*(k?)\s*(?:tokens?/s|tok/s)")


def size(option: str, text: str) -> int:
    """Bytes of "64GiB"."""
    _check_has_unit(option, text, "64GiB")
    if "/" in text:
        raise UsageError(f"{option} {text} is a rate, and a size is meant: write for example 64GiB")
    return _parsed(option, text, text, "64GiB")


def rate(option: str, text: str) -> int:
    """Bytes a second of "3.5GB/s"."""
    _check_has_unit(option, text, "3.5GB/s")
    amount, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise UsageError(
            f"{option} {text} is not a rate: write bytes a second, for example 3.5GB/s"
        )
    found = _parsed(option, amount, text, "3.5GB/s")
    if found == 0:
        raise UsageError(f"{option} {text} is no rate at which bytes move: leave {option} out")
    return found


def tokens_per_s(option: str, text: str) -> float:
    """Tokens a second of "2000tokens/s" or "2ktokens/s"."""
    match = _TOKENS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text} is no target: write for example 2000tokens/s")
    found = float(match[1]) * (1000 if match[2] else 1)
    if not found:
        raise UsageError(f"{option} {text} is no target: any machine reaches it")
    return found


def format_rate(bytes_per_s: float) -> str:
    """A rate as makers write it, in decimal units: "3.5 GB/s"."""
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.3g} {unit}"
    return f"{bytes_per_s:.3g} B/s"


def format_budget(size_bytes: float) -> str:
    """A size that `size` understands again, without a loss for whole MiB: "64GiB", "24576MiB"."""
    if size_bytes % 2**30 == 0:
        return f"{int(size_bytes) >> 30}GiB"
    if size_bytes % 2**20 == 0:
        return f"{int(size_bytes) >> 20}MiB"
    return format_size(size_bytes).replace(" ", "")


def _check_has_unit(option: str, text: str, example: str) -> None:
    if _NUMBER.fullmatch(text.strip()):
        raise UsageError(f"{option} {text} has no unit: write for example {example}")


def _parsed(option: str, amount: str, text: str, example: str) -> int:
    try:
        return parse_size(amount)
    except UsageError:
        raise UsageError(
            f"{option} {text} is not understood: write for example {example}"
        ) from None
