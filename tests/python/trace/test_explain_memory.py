"""`memtide explain --memory` says how blocks of torch's allocator live, and what of it repeats."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trace_builder as build
from memtide._capi import admin
from memtide._trace.allocator import AllocatorRecord, Block, Operation
from memtide._trace.explain_memory import explain_memory
from memtide._trace.memory_pattern import alive
from memtide._trace.model import parse
from memtide.errors import InvalidArgument, UsageError

_KIB = 1024
_STEPS = ("aten::mm", "aten::relu", "aten::relu_backward", "aten::add_")
_PHASES = ("forward", "forward", "backward", "step")


def record_of(*, late: int = 0) -> AllocatorRecord:
    """Three iterations of four operations each. In each, a block lives from forward to backward,
    one for an operation, and a gradient until the next iteration; in the second one, `late`
    operations longer than in the first."""
    blocks = [Block(8 * _KIB, None, None, (0, 4, 8), "parameter")]
    for start in (0, 4, 8):
        blocks += [
            Block(4 * _KIB, start, start + 2, (start + 1, start + 2)),
            Block(_KIB, start + 1, start + 1),
            Block(2 * _KIB, start + 2, start + 5 + (late if start else 0) if start < 8 else None),
        ]
    operations = [Operation(*each) for each in zip(_STEPS, _PHASES, strict=True)]
    return AllocatorRecord(tuple(operations * 3), (4, 8, 12), tuple(blocks))


def explained(record: AllocatorRecord, raw: bytes | None = None) -> list[str]:
    stored = admin.add_to_trace(raw or build.two_layers(), {"allocator": record.as_json()})
    return list(explain_memory(parse(stored)))


def test_a_record_is_read_as_it_was_stored() -> None:
    record = replace(record_of(), blocks_left_out=3, bytes_left_out=70, uses_left_out=5)
    stored = admin.add_to_trace(build.two_layers(), {"allocator": record.as_json()})
    read = parse(stored)
    assert read.allocator is not None
    assert AllocatorRecord.of_json(read.allocator) == record
    assert len(read.moments) == 6  # The moments of the trace to which it was added.


def test_an_iteration_is_explained_with_its_peak_its_pattern_and_what_is_managed() -> None:
    lines = explained(record_of())
    # At the peak: 8 KiB of parameters, 4 and 1 KiB, and in later iterations the last gradient.
    assert lines[1:6] == [
        "iteration 0: 4 operations, 3 blocks of 7.00 KiB are born; most are alive in operation 2 "
        "(backward, aten::relu_backward): 14.0 KiB",
        "  memtide manages 57.1% of these bytes (parameter 8.00 KiB), and 65.3% of the iteration's "
        "bytes times operations",
        "  sizes: up to 1.00 KiB: 1 block of 1.00 KiB; up to 16.0 KiB: 2 blocks of 6.00 KiB",
        "  lifetimes: up to 0: 1 block of 1.00 KiB; up to 10: 2 blocks of 6.00 KiB",
        "  pattern: within an operation: 1 block of 1.00 KiB; within a phase: none; forward to "
        "backward: 1 block of 4.00 KiB; to the step or the next iteration: 1 block of 2.00 KiB; "
        "across iterations: none",
    ]
    assert lines[6].endswith("in operation 5 (forward, aten::relu): 15.0 KiB")
    assert lines[8:] == [
        "  100.0% of its births repeat those of iteration 0, in order, size and lifetime"
    ]


def test_a_block_that_lives_longer_than_before_does_not_repeat() -> None:
    lines = explained(record_of(late=1))
    assert "  66.7% of its births repeat those of iteration 0, in order, size and lifetime" in lines
    assert any(line.startswith("  sizes") for line in lines[8:])
    # It is alive at the end of the next iteration.
    assert "across iterations: 1 block of 2.00 KiB" in explained(record_of(late=3))[-1]


def test_a_birth_more_leaves_the_others_alike() -> None:
    record = record_of()
    more = [*record.blocks]
    more.insert(4, Block(64, 4, 5))
    (line,) = (e for e in explained(replace(record, blocks=tuple(more))) if "repeat" in e)
    assert line.startswith("  75.0% of its births")


def test_a_block_is_alive_in_the_operations_of_its_birth_and_its_death() -> None:
    blocks = [Block(10, 1, 2, kind="gradient"), Block(5, None, 0), Block(7, 3, None)]
    here = alive(blocks, range(1, 4))
    assert (here.peak, here.peak_bytes) == (1, 10)
    assert here.byte_operations == {"gradient": 20, None: 7}


def test_what_the_limits_left_out_is_said() -> None:
    record = replace(record_of(), blocks_left_out=3, bytes_left_out=4096, uses_left_out=5)
    assert "3 blocks, 4.00 KiB together, and 5 uses" in explained(record)[1]


def test_a_trace_without_a_record_is_an_error_that_says_how_to_make_one() -> None:
    with pytest.raises(UsageError, match="--trace-memory` makes one"):
        list(explain_memory(parse(build.two_layers())))
    with pytest.raises(UsageError, match="has 1 complete iterations, and two are needed"):
        explained(replace(record_of(), iteration_ends=(4,)))
    broken = admin.add_to_trace(b"", {"allocator": {"names": ["a"], "operations": [4]}})
    with pytest.raises(InvalidArgument, match="a name|operation's name"):
        list(explain_memory(parse(broken)))
