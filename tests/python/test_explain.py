"""The history of a chunk in words."""

from __future__ import annotations

import made_traces as made
import pytest
from memtide.errors import UsageError
from memtide.explain import explain
from memtide.trace import parse


def told(number: int) -> list[str]:
    return list(explain(parse(made.two_layers()), number))


def test_a_history_is_newest_first() -> None:
    assert told(0) == [
        "chunk 0: parameter, 4.00 MiB, its next use is expected 3 moments after the last, 5",
        "read in moment 5 (forward, Embedding)",
        "written in moment 4 (step, AdamW)",
        "read in moment 3 (backward, Embedding)",
        "brought from host memory to the device at moment 3 (backward, Embedding) (4.0 ms): "
        "a client asked for it",
        "evicted from the device at moment 2 (backward, Linear), to host memory (4.0 ms), because "
        "its next use is 3, 1 moment later; 2 others that could leave were needed sooner",
        "read in moment 0 (forward, Embedding)",
        "brought from host memory to the device at moment 0 (forward, Embedding) (4.0 ms) ahead of "
        "its use: its next use is 3, 3 moments later",
        "brought from SSD to host memory at moment 0 (forward, Embedding) (2.0 ms): "
        "a fetch waited for it",
    ]


def test_what_was_foreseen_is_held_to_what_came() -> None:
    assert told(1)[1:4] == [
        "written in moment 4 (step, AdamW)",
        "written ahead from host memory to SSD at moment 3 (backward, Embedding) (5.0 ms), as it "
        "was to leave soon: no use of it was expected (it came at 4)",
        "evicted from the device at moment 3 (backward, Embedding), without a write, because "
        "its next use is 7, 4 moments later; 1 other that could leave was needed sooner "
        "(it came at 4)",
    ]


def test_a_chunk_that_was_freed_has_a_history_too() -> None:
    assert told(2) == [
        "chunk 2: 4.00 MiB, freed since",
        "read and freed in moment 4 (step, AdamW)",
        "written in moment 3 (backward, Embedding)",
        "brought from host memory to the device at moment 3 (backward, Embedding) (4.0 ms): "
        "a fetch waited for it",
        "allocated and written in moment 2 (backward, Linear)",
    ]


def test_an_eviction_that_writes_is_told_once() -> None:
    moves = [
        made.move(1, made.DEVICE, made.HOST, made.VICTIM, 1, 2, 0, 3),
        made.move(1, made.DEVICE, made.DROPPED, made.VICTIM, 3, 0, 0, 3),
    ]
    read = parse(made.trace(chunks=[made.chunk(1, 9, made.PARAMETER)], moves=moves))
    assert list(explain(read, 1))[1:] == [
        "evicted from the device at moment 0, to host memory (2.0 ms), because its next use is 3, "
        "3 moments later; nothing else could leave that was needed sooner"
    ]


def test_alike_uses_are_one_line() -> None:
    moments = [made.moment(made.FORWARD, "Linear", n, (4, made.READ)) for n in range(9)]
    chunks = [made.chunk(4, 12, made.GRADIENT), made.chunk(5, 13, made.GRADIENT)]
    read = parse(made.trace(moments, chunks=chunks))
    assert list(explain(read, 12))[1:] == [  # By its id.
        "read in 9 moments, 0 (forward, Linear) to 8 (forward, Linear)"
    ]
    assert list(explain(read, 5)) == [
        "chunk 5: gradient, 4.00 MiB, no use of it is expected",
        "it was not used or moved in the iterations that the trace has",
    ]


def test_a_moment_that_the_trace_does_not_have_any_more_is_a_number() -> None:
    moves = [made.move(1, made.HOST, made.DEVICE, made.DEMAND, 0, 1, 77)]
    read = parse(made.trace(chunks=[made.chunk(1, 9, made.PARAMETER)], moves=moves))
    assert list(explain(read, 1))[1] == (
        "brought from host memory to the device at moment 77 (1.0 ms): a fetch waited for it"
    )


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (made.two_layers(), "no chunk 9; its chunks are 0 to 2"),
        (
            made.trace(chunks=[made.chunk(n, 0, made.GRADIENT) for n in range(0, 40, 2)]),
            "no chunk 9; its chunks are 0, 2, 4, 6, 8, 10, 12, 14 and others",
        ),
        (made.trace(), "no chunks: nothing was leased"),
    ],
    ids=["few", "many", "none"],
)
def test_a_chunk_that_is_not_there_is_an_error(raw: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        list(explain(parse(raw), 9))
