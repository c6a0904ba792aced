"""Sizes in human-readable form are parsed and formatted."""

from __future__ import annotations

import pytest
from memtide._util.sizes import format_size, parse_size
from memtide.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2KiB", 2048),
        ("2k", 2048),
        ("96MiB", 96 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("1.5GB", 1_500_000_000),
        (" 3 TiB ", 3 * 2**40),
    ],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "5 parsecs", "1.GiB", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1.00 KiB"),
        (2**20, "1.00 MiB"),
        (96 * 2**20, "96.0 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (58 * 2**40, "58.0 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes_are_written_with_three_digits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
