"""The kernel's figures of this process's memory, peaks between two readings included."""

from __future__ import annotations

import mmap

import pytest
from memtide._telemetry import process_memory
from memtide._telemetry.process_memory import UsageReader

_MIB = 2**20


def fill(size_bytes: int) -> mmap.mmap:
    """Anonymous memory that is resident."""
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        memory[offset] = 1
    return memory


def test_what_was_used_and_freed_between_two_readings_is_seen() -> None:
    reader = UsageReader()
    reader.read()
    before = reader.read()
    fill(200 * _MIB).close()
    after = reader.read()
    assert after.anonymous_bytes - before.anonymous_bytes < 50 * _MIB
    assert 190 * _MIB < after.most_bytes - before.anonymous_bytes < 250 * _MIB
    assert after.most_resident_bytes >= after.most_bytes
    assert reader.read().most_bytes < before.anonymous_bytes + 50 * _MIB, "it was said once"


def test_what_was_before_the_first_reading_does_not_count() -> None:
    fill(200 * _MIB).close()
    usage = UsageReader().read()
    assert usage.most_bytes == usage.anonymous_bytes


def test_a_kernel_that_forgets_no_peak_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_forget_peak", lambda: True)
    reader = UsageReader()
    fill(200 * _MIB).close()
    for _ in range(3):
        usage = reader.read()
        assert usage.most_bytes == usage.anonymous_bytes
