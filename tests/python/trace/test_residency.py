"""Which chunks stay on the fastest tier, and which leave it and come back."""

from __future__ import annotations

from memtide._trace.model import Chunk, Moment, Trace, Transfer
from memtide._trace.residency import Residency, Row, residency


def _moved(
    chunk: int, source: str | None, target: str | None, moment: int, **more: object
) -> Transfer:
    values = {"reason": "prefetch", "start_s": moment + 0.1, "duration_s": 0.2, **more}
    return Transfer(chunk, source, target, moment=moment, next_use=None, nearer=0, **values)  # type: ignore[arg-type]


def _trace(transfers: list[Transfer], **more: object) -> Trace:
    """Two iterations of four moments of a second: chunks 0 to 3 are read in turn."""
    moments = [
        Moment(i, "forward" if i % 4 < 2 else "backward", "", 0, 0, float(i), ((i % 4, "read"),))
        for i in range(8)
    ]
    chunks = {number: Chunk(number, number, "parameter", None) for number in range(4)}
    values = {"slots": {"device": 2, "host": 4}, "iteration_ends": (4, 8), **more}
    return Trace("", 7, 1, chunks=chunks, moments=tuple(moments), transfers=tuple(transfers),
                 stalls=(), **values)  # type: ignore[arg-type]  # fmt: skip


def _spans(transfers: list[Transfer]) -> dict[int, tuple[tuple[int, int], ...]]:
    found = residency(_trace(transfers))
    assert found is not None
    return {row.number: row.spans for row in found.rows}


def test_a_chunk_without_transfers_stays() -> None:
    found = residency(_trace([_moved(1, "device", "host", 6, reason="evict")]))
    assert found == Residency(
        "device",
        ("forward", "forward", "backward", "backward"),
        (
            Row(0, "parameter", ((0, 4),)),
            Row(1, "parameter", ((0, 2),)),
            Row(2, "parameter", ((0, 4),)),
            Row(3, "parameter", ((0, 4),)),
        ),
    )
    assert found.staying == 3


def test_a_chunk_is_there_from_its_arrival_to_its_eviction() -> None:
    spans = _spans([
        _moved(2, "host", "device", 4, duration_s=1.0),
        _moved(2, "device", None, 7),
        _moved(3, "device", None, 1),
        _moved(3, "host", "device", 6, duration_s=5.0),
    ])  # fmt: skip
    assert spans[2] == ((1, 3),)
    assert spans[3] == ((3, 4),), "a chunk that is used is there, whenever it came"


def test_a_write_back_and_moves_below_take_no_chunk_away() -> None:
    spans = _spans([
        _moved(0, "device", "host", 5, reason="write_back"),
        _moved(1, "host", "ssd", 5, reason="evict"),
        _moved(1, "ssd", "host", 6),
    ])  # fmt: skip
    assert spans[0] == spans[1] == ((0, 4),)


def test_without_a_device_it_is_host_memory_and_without_an_iteration_nothing() -> None:
    host = residency(_trace([], slots={"device": 0, "host": 2}))
    assert host is not None
    assert host.tier == "host"
    assert residency(_trace([], slots={"device": 0, "host": 0})) is None
    assert residency(_trace([], iteration_ends=())) is None
