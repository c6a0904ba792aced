"""`memtide explain` prints the history of a chunk in words."""

from __future__ import annotations

import pytest
import trace_builder as build
from memtide._trace.explain import chunks_of, explain
from memtide._trace.model import parse
from memtide.errors import UsageError


def history(number: int) -> list[str]:
    return list(explain(parse(build.two_layers()), number))


def test_a_history_is_newest_first() -> None:
    assert history(0) == [
        "chunk 0: parameter, 4.00 MiB, its next use is predicted 3 moments after the last moment, "
        "5",
        "by its uses, it has parameters of Embedding",
        "read in moment 5 (forward, Embedding)",
        "written in moment 4 (step, AdamW)",
        "read in moment 3 (backward, Embedding)",
        "copied from host memory to the device at moment 3 (backward, Embedding) (4.0 ms): "
        "a client asked for it",
        "evicted from the device at moment 2 (backward, Linear), to host memory (4.0 ms), because "
        "its next use was predicted for moment 3, 1 moment later; "
        "2 other possible victims were needed sooner",
        "read in moment 0 (forward, Embedding)",
        "prefetched from host memory to the device at moment 0 (forward, Embedding) (4.0 ms): "
        "its next use was predicted for moment 3, 3 moments later",
        "copied from SSD to host memory at moment 0 (forward, Embedding) (2.0 ms): "
        "a fetch waited for it",
    ]


def test_a_wrong_prediction_is_shown_with_the_actual_use() -> None:
    assert history(1)[2:5] == [
        "written in moment 4 (step, AdamW)",
        "written back early from host memory to SSD at moment 3 (backward, Embedding) (5.0 ms): "
        "no further use was predicted (it came at 4)",
        "evicted from the device at moment 3 (backward, Embedding), without a write-back, because "
        "its next use was predicted for moment 7, 4 moments later; "
        "1 other possible victim was needed sooner (it came at 4)",
    ]


def test_a_chunk_that_was_freed_has_a_history_too() -> None:
    assert history(2) == [
        "chunk 2: 4.00 MiB, freed since",
        "read and freed in moment 4 (step, AdamW)",
        "written in moment 3 (backward, Embedding)",
        "copied from host memory to the device at moment 3 (backward, Embedding) (4.0 ms): "
        "a fetch waited for it",
        "allocated and written in moment 2 (backward, Linear)",
    ]


def test_an_eviction_with_a_write_back_is_one_line() -> None:
    moves = [
        build.move(1, build.DEVICE, build.HOST, build.EVICT, 1, 2, 0, 3),
        build.move(1, build.DEVICE, build.DROPPED, build.EVICT, 3, 0, 0, 3),
    ]
    read = parse(build.trace(chunks=[build.chunk(1, 9, build.PARAMETER)], moves=moves))
    assert list(explain(read, 1))[1:] == [
        "evicted from the device at moment 0, to host memory (2.0 ms), because its next use was "
        "predicted for moment 3, 3 moments later; no other possible victim was needed sooner"
    ]


def test_alike_uses_are_one_line() -> None:
    moments = [build.moment(build.FORWARD, "Linear", n, (4, build.READ)) for n in range(9)]
    chunks = [build.chunk(4, 12, build.GRADIENT), build.chunk(5, 13, build.GRADIENT)]
    read = parse(build.trace(moments, chunks=chunks))
    assert list(explain(read, 12))[1:] == [  # The argument is the chunk's id.
        "read in 9 moments, 0 (forward, Linear) to 8 (forward, Linear)"
    ]
    assert list(explain(read, 5)) == [
        "chunk 5: gradient, 4.00 MiB, no further use is predicted",
        "it was neither used nor transferred in the iterations of the trace",
    ]


def test_a_moment_that_the_trace_does_not_have_any_more_is_a_number() -> None:
    moves = [build.move(1, build.HOST, build.DEVICE, build.DEMAND, 0, 1, 77)]
    read = parse(build.trace(chunks=[build.chunk(1, 9, build.PARAMETER)], moves=moves))
    assert list(explain(read, 1))[1] == (
        "copied from host memory to the device at moment 77 (1.0 ms): a fetch waited for it"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (build.two_layers(), "no chunk 9; its chunks are 0 to 2"),
        (
            build.trace(chunks=[build.chunk(n, 0, build.GRADIENT) for n in range(0, 40, 2)]),
            "no chunk 9; its chunks are 0, 2, 4, 6, 8, 10, 12, 14 and others",
        ),
        (build.trace(), "no chunks: its moments use none"),
    ],
    ids=["few", "many", "none"],
)
def test_a_chunk_that_is_not_there_is_an_error(raw: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(explain(parse(raw), 9))


def test_a_module_or_a_parameter_of_it_names_the_chunks_that_its_passes_use() -> None:
    names = ("blocks.0.mix", "blocks.0.out")
    moments = [
        build.moment(build.FORWARD, names[0], 0, (7, build.READ), (3, build.FREE)),
        build.moment(build.FORWARD, names[1], 1, (7, build.READ), (8, build.READ)),
        build.moment(build.BACKWARD, names[1], 2, (3, build.WRITE), (8, build.READ)),
        build.moment(build.STEP, "daemon", 3, (4, build.WRITE), (7, build.WRITE)),
    ]
    chunks = [build.chunk(n, 0, build.PARAMETER) for n in (7, 8)]
    chunks += [build.chunk(n, 0, build.GRADIENT) for n in (3, 4)]
    read = parse(build.trace(moments, chunks=chunks))
    assert chunks_of(read, "blocks.0.mix") == chunks_of(read, "blocks.0.mix.weight") == [7]
    assert chunks_of(read, "blocks.0.out") == [7, 8]
    lines = [next(line for line in list(explain(read, n))[1:]) for n in (7, 8, 3)]
    assert lines == [
        "by its uses, it has parameters of blocks.0.mix, blocks.0.out",
        "by its uses, it has parameters of blocks.0.out",
        "by its uses, it has gradients of blocks.0.out",
    ]
    assert not any("by its uses" in line for line in explain(read, 4))
    with pytest.raises(UsageError, match="'daemon'; its modules are blocks.0.mix, blocks.0.out"):
        chunks_of(read, "daemon")
