"""The history of a chunk from a trace, in words, newest first: its uses and transfers, and why."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import groupby

from memtide._trace.model import Chunk, Trace, Transfer
from memtide._util.listed import listed
from memtide._util.sizes import format_size
from memtide.errors import UsageError

_ACCESSES = ("read", "write")
_PHASE_OF_USES = {"parameter": "forward", "gradient": "backward"}
_MOST_NAMES = 8
_PAST = {"read": "read", "write": "written", "allocate": "allocated", "free": "freed"}


def explain(
    trace: Trace, wanted: int, held_by: Callable[[int], str | None] = lambda _: None
) -> Iterator[str]:
    """A headline for the chunk with this number (or id), then what it held, if `held_by` knows that
    of its number, and a line for each use and transfer.

    UsageError: the trace has no such chunk.
    """
    number = _number_of(trace, wanted)
    # A moment's transfers are made for its uses, so its uses count as newer.
    lines = [
        *((t.moment, 0, t.start_s, _in_words(t, trace)) for t in _transfers(trace, number)),
        *((first, 1, 0.0, text) for first, text in _uses(trace, number)),
    ]
    chunk = trace.chunks.get(number)
    yield _headline(trace, number, chunk)
    modules = _modules_of(trace, number, chunk)
    if modules:
        yield f"by its uses, it has {modules}"
    held = held_by(number)
    if held is not None:
        yield held
    if not lines:
        yield "it was neither used nor transferred in the iterations of the trace"
    for *_, text in sorted(lines, reverse=True):
        yield text


def chunks_of(trace: Trace, name: str) -> list[int]:
    """The chunks of parameters that a module's forward passes use, by the module's path, or by that
    of a parameter of it. UsageError: no module of the trace has this name."""
    used: dict[str, set[int]] = {}
    for moment in trace.moments:
        if moment.phase == _PHASE_OF_USES["parameter"]:
            numbers = {number for number, operation in moment.uses if operation in _ACCESSES}
            used.setdefault(moment.name, set()).update(numbers)
    chunks = used.get(name) or used.get(name.rpartition(".")[0]) or set()
    found = [n for n in sorted(chunks) if n in trace.chunks and trace.chunks[n].kind == "parameter"]
    if not found:
        raise UsageError(
            f"the trace has no chunk of a module '{name}'; its modules are "
            f"{listed(sorted(used), _MOST_NAMES) or 'none'}"
        )
    return found


def _modules_of(trace: Trace, number: int, chunk: Chunk | None) -> str:
    """The modules whose parameters or gradients a chunk has, by the passes that use it. Empty:
    none, or it has other tensors: a step does not say which parameters the states that it uses are
    of."""
    phase = _PHASE_OF_USES.get(chunk.kind if chunk is not None else "")
    moments = (moment for moment in trace.moments if moment.phase == phase)
    accesses = {(number, operation) for operation in _ACCESSES}
    names = dict.fromkeys(m.name for m in moments if not accesses.isdisjoint(m.uses))
    if chunk is None or not names:
        return ""
    return f"{chunk.kind}s of {listed(list(names), _MOST_NAMES)}"


def _number_of(trace: Trace, wanted: int) -> int:
    known = set(trace.chunks) | {transfer.chunk for transfer in trace.transfers}
    known.update(number for moment in trace.moments for number, _ in moment.uses)
    if wanted in known:
        return wanted
    for chunk in trace.chunks.values():
        if wanted and chunk.chunk_id == wanted:
            return chunk.number
    if not known:
        raise UsageError("the trace has no chunks: its moments use none")
    raise UsageError(f"the trace has no chunk {wanted}; its chunks are {_ranges(sorted(known))}")


def _ranges(numbers: list[int]) -> str:
    """Text of the first few ranges of ascending numbers, such as "0 to 6, 9"."""
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
        future = "no further use is predicted"
    else:
        later = _moments(chunk.next_use - last)
        future = f"its next use is predicted {later} after the last moment, {last}"
    return f"chunk {number}: {chunk.kind}, {size}{future}"


def _transfers(trace: Trace, number: int) -> Iterator[Transfer]:
    """The transfers of a chunk, without the drop that ends each eviction with a write-back."""
    written: set[tuple[int, str | None]] = set()
    for transfer in (transfer for transfer in trace.transfers if transfer.chunk == number):
        if transfer.reason == "evict" and transfer.target is None:
            if (transfer.moment, transfer.source) in written:
                continue
        elif transfer.reason == "evict":
            written.add((transfer.moment, transfer.source))
        yield transfer


def _uses(trace: Trace, number: int) -> Iterator[tuple[int, str]]:
    """The uses of a chunk, as moment and text. Equal ones between two transfers share a line."""
    transfers = sorted(transfer.moment for transfer in trace.transfers if transfer.chunk == number)
    uses = [
        (moment, tuple(dict.fromkeys(operation for n, operation in moment.uses if n == number)))
        for moment in trace.moments
    ]
    groups = groupby(
        (use for use in uses if use[1]), key=lambda use: (bisect(transfers, use[0].index), use[1])
    )
    for (_, operations), group in groups:
        moments = [moment for moment, _ in group]
        verbs = " and ".join(_PAST[operation] for operation in operations)
        where = f"moment {moments[0]}"
        if len(moments) > 1:
            where = f"{len(moments)} moments, {moments[0]} to {moments[-1]}"
        yield moments[0].index, f"{verbs} in {where}"


def _in_words(transfer: Transfer, trace: Trace) -> str:
    at = f"at moment {_moment(trace, transfer.moment)}"
    duration = f" ({1e3 * transfer.duration_s:.1f} ms)" if transfer.duration_s else ""
    source, target = _tier(transfer.source), _tier(transfer.target)
    if transfer.reason == "evict":
        where = f", to {target}{duration}," if transfer.target else ", without a write-back,"
        why = f"because {_prediction(transfer)}; {_others(transfer.nearer)}"
        return f"evicted from {source} {at}{where} {why}{_correction(transfer, trace)}"
    prediction = f"{_prediction(transfer)}{_correction(transfer, trace)}"
    if transfer.reason == "write_back":
        return f"written back early from {source} to {target} {at}{duration}: {prediction}"
    if transfer.target is None:
        why = _WHY.get(transfer.reason, "it was no longer needed")
        return f"its copy on {source} was dropped {at}: {why}"
    if transfer.reason == "prefetch" and transfer.source:
        return f"prefetched from {source} to {target} {at}{duration}: {prediction}"
    verb = f"copied from {source} to" if transfer.source else "zeros were written to"
    why = _WHY.get(transfer.reason, "no reason is known")
    return f"{verb} {target} {at}{duration}: {why}"


_WHY = {
    "demand": "a fetch waited for it",
    "request": "a client asked for it",
    "prefetch": "a use of it was predicted",
}


def _prediction(transfer: Transfer) -> str:
    if transfer.next_use is None:
        return "no further use was predicted"
    later = _moments(transfer.next_use - transfer.moment)
    return f"its next use was predicted for moment {transfer.next_use}, {later} later"


def _others(nearer: int) -> str:
    if not nearer:
        return "no other possible victim was needed sooner"
    victims = (
        "1 other possible victim was" if nearer == 1 else f"{nearer} other possible victims were"
    )
    return f"{victims} needed sooner"


def _correction(transfer: Transfer, trace: Trace) -> str:
    """Names the moment of the next use, if it is known and is not the predicted one."""
    actual = next(
        (
            moment.index
            for moment in trace.moments[transfer.moment + 1 :]
            if any(chunk == transfer.chunk for chunk, _ in moment.uses)
        ),
        None,
    )
    if actual == transfer.next_use or actual is None:
        return ""
    return f" (it came at {actual})"


def _moment(trace: Trace, index: int) -> str:
    return str(trace.moments[index]) if index < len(trace.moments) else str(index)


def _tier(tier: str | None) -> str:
    return {None: "nowhere", "device": "the device", "host": "host memory", "ssd": "SSD"}[tier]


def _moments(count: int) -> str:
    return f"{count} moment" if count == 1 else f"{count} moments"
