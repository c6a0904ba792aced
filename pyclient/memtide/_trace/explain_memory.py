"""The record of torch's allocator in a few iterations, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from memtide._trace.allocator import AllocatorRecord, Block
from memtide._trace.memory_pattern import (
    Alive,
    KindBytes,
    Total,
    alive,
    born_in,
    lifetime,
    pattern,
    repeated,
)
from memtide._trace.model import Trace
from memtide._util.sizes import format_size
from memtide.errors import InvalidArgument, UsageError

_SIZES = (2**10, 2**14, 2**18, 2**22, 2**26)
_LIFETIMES = (0, 1, 10, 100, 1000)


def explain_memory(trace: Trace) -> Iterator[str]:
    """Lines for each iteration of the record, but for the last one, which shows what of the one
    before lives on. UsageError: the trace has no record of two iterations. InvalidArgument: it
    cannot be read."""
    record = _record_of(trace)
    iterations = record.iterations()
    yield (
        f"{len(iterations) - 1} iterations of torch's operations, and one more, which shows what "
        "of the last one lives on; lifetimes are in operations, and operations are numbered from "
        "the first one"
    )
    if record.blocks_left_out or record.uses_left_out:
        yield (
            f"left out, as a record has a limit: {record.blocks_left_out} blocks, "
            f"{format_size(record.bytes_left_out)} together, and {record.uses_left_out} uses"
        )
    for number, iteration in enumerate(iterations[:-1]):
        until = iterations[number + 1].stop
        born = born_in(record, iteration)
        yield from _iteration(record, number, iteration, born)
        alike = None
        if number:
            before = born_in(record, iterations[number - 1])
            alike = repeated(before, (iteration.stop, until), born)
            yield (
                f"  {alike:.1%} of its births repeat those of iteration {number - 1}, in order, "
                "size and lifetime"
            )
        if alike != 1:
            yield from _distributions(record, iteration, born, until)


def _record_of(trace: Trace) -> AllocatorRecord:
    if trace.allocator is None:
        raise UsageError(
            "the trace has no record of torch's allocator: `memtide run --trace "
            "FILE.trace.gz --trace-memory` makes one"
        )
    try:
        record = AllocatorRecord.of_json(trace.allocator)
    except ValueError as error:
        raise InvalidArgument(f"the record of torch's allocator cannot be read: {error}") from error
    iterations = record.iterations()
    if len(iterations) < 2 or not all(iterations):
        raise UsageError(
            f"the record of torch's allocator has {sum(map(bool, iterations))} complete "
            "iterations, and two are needed: record a run of at least 4 steps"
        )
    return record


def _iteration(
    record: AllocatorRecord, number: int, iteration: range, born: list[Block]
) -> Iterator[str]:
    here = alive(record.blocks, iteration)
    at = record.operations[here.peak]
    yield (
        f"iteration {number}: {len(iteration)} operations, {_in_words(_total(born))} are born; "
        f"most are alive in operation {here.peak} ({at.phase}, {at.name}): "
        f"{format_size(here.peak_bytes)}"
    )
    yield f"  memtide manages {_managed(here)}"


def _managed(here: Alive) -> str:
    kinds = ", ".join(
        f"{kind} {format_size(size)}"
        for kind, size in sorted(here.at_peak.items(), key=lambda item: -item[1])
        if kind is not None
    )
    return (
        f"{_share(here.at_peak):.1%} of these bytes{f' ({kinds})' if kinds else ''}, and "
        f"{_share(here.byte_operations):.1%} of the iteration's bytes times operations"
    )


def _share(of: KindBytes) -> float:
    total = sum(of.values())
    return (total - of.get(None, 0)) / total if total else 0.0


def _distributions(
    record: AllocatorRecord, iteration: range, born: list[Block], until: int
) -> Iterator[str]:
    sizes = _by_limit(born, _SIZES, lambda block: block.size_bytes)
    yield f"  sizes: {_listed(sizes, format_size)}"
    lifetimes = _by_limit(born, _LIFETIMES, lambda block: lifetime(block, until))
    yield f"  lifetimes: {_listed(lifetimes, str)}"
    lived = pattern(record, iteration, until).items()
    yield f"  pattern: {'; '.join(f'{name}: {_in_words(total)}' for name, total in lived)}"


def _by_limit(
    blocks: Iterable[Block], limits: tuple[int, ...], value_of: Callable[[Block], int | None]
) -> list[tuple[int | None, Total]]:
    """The blocks by the first limit that their value does not exceed; None: it exceeds all, or
    there is none."""
    totals: dict[int | None, Total] = {limit: Total() for limit in (*limits, None)}
    for block in blocks:
        value = value_of(block)
        fits = (limit for limit in limits if value is not None and value <= limit)
        totals[next(fits, None)].add(block)
    return list(totals.items())


def _listed(totals: list[tuple[int | None, Total]], text_of: Callable[[int], str]) -> str:
    return "; ".join(
        f"{'longer or larger' if limit is None else f'up to {text_of(limit)}'}: {_in_words(total)}"
        for limit, total in totals
        if total.blocks
    )


def _total(blocks: Iterable[Block]) -> Total:
    total = Total()
    for block in blocks:
        total.add(block)
    return total


def _in_words(total: Total) -> str:
    blocks = "1 block" if total.blocks == 1 else f"{total.blocks} blocks"
    return f"{blocks} of {format_size(total.size_bytes)}" if total.blocks else "none"
