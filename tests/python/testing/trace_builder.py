"""Builds traces by hand: the messages of proto/memtide/v1/trace.proto, serialized."""

from __future__ import annotations

from collections.abc import Iterable

FORWARD, BACKWARD, STEP = 1, 2, 3
READ, WRITE, ALLOCATE, FREE = 0, 1, 2, 3
ZEROS = DROPPED = 0
DEVICE, HOST, SSD = 1, 2, 3
DEMAND, PREFETCH, EVICT, WRITE_BACK, REQUEST = 1, 2, 3, 4, 5
PARAMETER, GRADIENT = 1, 2
_MS = 1_000_000


def moment(phase: int, name: str, at_ms: float, *uses: tuple[int, int], own: int = 0) -> bytes:
    """A TracedMoment. `uses`: (chunk, operation) pairs; `own`: the process's own host bytes."""
    packed = b"".join(_varint(chunk * 4 + operation) for chunk, operation in uses)
    return _message({1: phase, 2: name.encode(), 4: own, 5: int(at_ms * _MS), 6: packed})


def move(
    chunk: int,
    source: int,
    target: int,
    reason: int,
    at_ms: float,
    took_ms: float,
    moment: int,
    next_use_in: int | None = None,
    nearer: int = 0,
) -> bytes:
    """A TracedMove."""
    times = {5: int(at_ms * _MS), 6: int(took_ms * _MS), 7: moment}
    predicted = {} if next_use_in is None else {8: next_use_in, 9: 1}
    return _message({1: chunk, 2: source, 3: target, 4: reason, **times, **predicted, 10: nearer})


def chunk(number: int, chunk_id: int, kind: int, next_use_in: int | None = None) -> bytes:
    """A TracedChunk."""
    predicted = {} if next_use_in is None else {4: next_use_in, 5: 1}
    return _message({1: number, 2: chunk_id, 3: kind, **predicted})


def stall(at_ms: float, took_ms: float, waited_for: int, chunks: int = 1) -> bytes:
    """A TracedStall."""
    return _message({1: int(at_ms * _MS), 2: int(took_ms * _MS), 3: waited_for, 4: chunks})


def trace(
    moments: Iterable[bytes] = (),
    *,
    iteration_ends: Iterable[int] = (),
    chunks: Iterable[bytes] = (),
    moves: Iterable[bytes] = (),
    stalls: Iterable[bytes] = (),
) -> bytes:
    """A Trace of job 7 with chunks of 4 MiB."""
    head = _message({2: 7, 3: 4 << 20, 4: 3, 5: 8, 6: 64})
    ends = _field(9, b"".join(map(_varint, iteration_ends)))
    lists = ((7, chunks), (8, moments), (10, moves), (11, stalls))
    return head + ends + b"".join(_field(n, each) for n, entries in lists for each in entries)


def two_layers() -> bytes:
    """A trace of one iteration over two layers, with its transfers; a second one has begun."""
    return trace(
        [
            moment(FORWARD, "Embedding", 0, (0, READ), own=100 << 20),
            moment(FORWARD, "Linear", 10, (1, READ)),
            moment(BACKWARD, "Linear", 20, (1, READ), (2, ALLOCATE), (2, WRITE)),
            moment(BACKWARD, "Embedding", 30, (0, READ), (2, WRITE)),
            moment(STEP, "AdamW", 40, (0, WRITE), (1, WRITE), (2, READ), (2, FREE)),
            moment(FORWARD, "Embedding", 50, (0, READ)),
        ],
        iteration_ends=[5],
        chunks=[chunk(0, 900, PARAMETER, 3), chunk(1, 901, PARAMETER)],
        moves=[
            move(0, SSD, HOST, DEMAND, 1, 2, 0),
            move(0, HOST, DEVICE, PREFETCH, 3, 4, 0, 3),
            move(1, ZEROS, DEVICE, DEMAND, 10, 0.5, 1),
            move(0, DEVICE, HOST, EVICT, 21, 4, 2, 1, nearer=2),
            move(1, DEVICE, DROPPED, EVICT, 31, 0, 3, 4, nearer=1),
            move(1, HOST, SSD, WRITE_BACK, 32, 5, 3, None),
            move(0, HOST, DEVICE, REQUEST, 33, 4, 3),
            move(2, HOST, DEVICE, DEMAND, 34, 4, 3),
        ],
        stalls=[stall(1, 2, SSD), stall(1.5, 3, ZEROS, 2)],
    )


def _message(fields: dict[int, int | bytes]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields.items())


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
