"""Why a chunk is where it is: its history from a trace, in words, newest first."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from itertools import groupby

from memtide.errors import UsageError
from memtide.sizes import format_size
from memtide.trace import Chunk, Move, Trace

_PAST = {"read": "read", "write": "written", "allocate": "allocated", "free": "freed"}


def explain(trace: Trace, wanted: int) -> Iterator[str]:
    """A line about the chunk of this number (or id), and one for each thing that happened to it.

    UsageError: the trace knows none such.
    """
    number = _number_of(trace, wanted)
    # The moves of a moment are for its uses, which so are newer.
    told = [
        *((m.moment, 0, m.start_s, _of_move(m, trace)) for m in _told_moves(trace, number)),
        *((first, 1, 0.0, text) for first, text in _uses(trace, number)),
    ]
    chunk = trace.chunks.get(number)
    yield _headline(trace, number, chunk)
    if not told:
        yield "it was not used or moved in the iterations that the trace has"
    for *_, text in sorted(told, reverse=True):
        yield text


def _number_of(trace: Trace, wanted: int) -> int:
    known = set(trace.chunks) | {move.chunk for move in trace.moves}
    known.update(number for moment in trace.moments for number, _ in moment.uses)
    if wanted in known:
        return wanted
    for chunk in trace.chunks.values():
        if wanted and chunk.chunk_id == wanted:
            return chunk.number
    if not known:
        raise UsageError("the trace has no chunks: nothing was leased in the moments it has")
    raise UsageError(f"the trace has no chunk {wanted}; its chunks are {_ranges(sorted(known))}")


def _ranges(numbers: list[int]) -> str:
    """ "0 to 6, 9" of the first few."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in runs[:8]]
    return ", ".join(texts) + (" and others" if len(runs) > 8 else "")


def _headline(trace: Trace, number: int, chunk: Chunk | None) -> str:
    size = f"{format_size(trace.chunk_bytes)}, " if trace.chunk_bytes else ""
    if chunk is None:
        return f"chunk {number}: {size}freed since"
    last = len(trace.moments) - 1
    if chunk.next_use is None:
        future = "no use of it is expected"
    else:
        future = f"its next use is expected {_later(chunk.next_use - last)} after the last, {last}"
    return f"chunk {number}: {chunk.kind}, {size}{future}"


def _told_moves(trace: Trace, number: int) -> Iterator[Move]:
    """The moves of a chunk, without the drop at the end of each eviction that wrote a copy."""
    written: set[tuple[int, str | None]] = set()
    for move in (move for move in trace.moves if move.chunk == number):
        if move.reason == "victim" and move.target is None:
            if (move.moment, move.source) in written:
                continue
        elif move.reason == "victim":
            written.add((move.moment, move.source))
        yield move


def _uses(trace: Trace, number: int) -> Iterator[tuple[int, str]]:
    """The uses of a chunk and the moment of each; alike ones between two moves are in one line."""
    moves = sorted(move.moment for move in trace.moves if move.chunk == number)
    uses = [
        (moment, tuple(dict.fromkeys(how for used, how in moment.uses if used == number)))
        for moment in trace.moments
    ]
    alike = groupby(
        (use for use in uses if use[1]), key=lambda use: (bisect(moves, use[0].index), use[1])
    )
    for (_, operations), grouped in alike:
        moments = [moment for moment, _ in grouped]
        done = " and ".join(_PAST[operation] for operation in operations)
        where = f"moment {moments[0]}"
        if len(moments) > 1:
            where = f"{len(moments)} moments, {moments[0]} to {moments[-1]}"
        yield moments[0].index, f"{done} in {where}"


def _of_move(move: Move, trace: Trace) -> str:
    at = f"at moment {_moment(trace, move.moment)}"
    took = f" ({1e3 * move.duration_s:.1f} ms)" if move.duration_s else ""
    source, target = _tier(move.source), _tier(move.target)
    if move.reason == "victim":
        where = f", to {target}{took}," if move.target else ", without a write,"
        return f"evicted from {source} {at}{where} {_because(move)}{_truth(move, trace)}"
    if move.reason == "cleaning":
        return (
            f"written ahead from {source} to {target} {at}{took}, as it was to leave soon: "
            f"{_expected(move)}{_truth(move, trace)}"
        )
    if move.target is None:
        return f"its copy on {source} was dropped {at}: {_WHY.get(move.reason, 'of no more use')}"
    moved = f"brought from {source} to {target}" if move.source else f"made of zeros on {target}"
    if move.reason == "prefetch":
        return f"{moved} {at}{took} ahead of its use: {_expected(move)}{_truth(move, trace)}"
    return f"{moved} {at}{took}: {_WHY.get(move.reason, 'no reason is known')}"


_WHY = {
    "demand": "a fetch waited for it",
    "request": "a client asked for it",
    "prefetch": "it was expected to be used soon",
}


def _because(move: Move) -> str:
    if move.next_use is None:
        return f"because no use of it was expected; {_others(move.nearer)}"
    return f"because {_expected(move)}; {_others(move.nearer)}"


def _expected(move: Move) -> str:
    if move.next_use is None:
        return "no use of it was expected"
    return f"its next use is {move.next_use}, {_later(move.next_use - move.moment)} later"


def _others(nearer: int) -> str:
    if not nearer:
        return "nothing else could leave that was needed sooner"
    others, were = ("other", "was") if nearer == 1 else ("others", "were")
    return f"{nearer} {others} that could leave {were} needed sooner"


def _truth(move: Move, trace: Trace) -> str:
    """When the next use came, if that is known and not as expected."""
    came = next(
        (
            moment.index
            for moment in trace.moments[move.moment + 1 :]
            if any(chunk == move.chunk for chunk, _ in moment.uses)
        ),
        None,
    )
    if came == move.next_use or came is None:
        return ""
    return f" (it came at {came})"


def _moment(trace: Trace, index: int) -> str:
    return str(trace.moments[index]) if index < len(trace.moments) else str(index)


def _tier(tier: str | None) -> str:
    return {None: "nowhere", "device": "the device", "host": "host memory", "ssd": "SSD"}[tier]


def _later(moments: int) -> str:
    return f"{moments} moment" if moments == 1 else f"{moments} moments"
