"""Which chunks were on the fastest tier in the last whole iteration of a trace: those that stay
there, and those that leave and come back (granular offloading)."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from memtide._trace.model import Trace, Transfer

_ACCESSES = ("read", "write")


@dataclass(frozen=True)
class Row:
    """One chunk: the spans [first, end) of moments, counted in the iteration, in which it is on the
    tier."""

    number: int
    kind: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Residency:
    """The chunks with a use in one iteration, in the order of their first uses."""

    tier: str
    phases: tuple[str, ...]  # By moment.
    rows: tuple[Row, ...]

    @property
    def staying(self) -> int:
        """How many chunks are on the tier in every moment."""
        return sum(row.spans == ((0, len(self.phases)),) for row in self.rows)


def residency(trace: Trace) -> Residency | None:
    """None: the trace has no whole iteration, or the job has no device and no host memory."""
    tier = next((tier for tier in ("device", "host") if trace.slots.get(tier)), None)
    if tier is None or not trace.iteration_ends:
        return None
    begin, end = (0, *trace.iteration_ends)[-2:]
    moments = trace.moments[begin:end]
    uses: dict[int, list[int]] = {}
    for moment in moments:
        for number, operation in moment.uses:
            if operation in _ACCESSES:
                uses.setdefault(number, []).append(moment.index - begin)
    changes = _changes(trace, tier)
    rows = []
    for number, used in uses.items():
        is_there = _presence(changes[number], begin, end)
        for index in used:
            is_there[index] = True
        chunk = trace.chunks.get(number)
        rows.append(Row(number, chunk.kind if chunk is not None else "other", _spans(is_there)))
    return Residency(tier, tuple(moment.phase for moment in moments), tuple(rows))


def _changes(trace: Trace, tier: str) -> dict[int, list[tuple[int, bool]]]:
    """By chunk: the moments from which it is on the tier, or no longer is, in their order."""
    begins_s = [moment.time_s for moment in trace.moments]
    changes: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for transfer in sorted(trace.transfers, key=lambda transfer: transfer.start_s):
        if transfer.target == tier:
            # A moment that waited for the transfer has the chunk.
            arrives = bisect(begins_s, transfer.start_s + transfer.duration_s) - 1
            changes[transfer.chunk].append((arrives, True))
        elif _leaves(transfer, tier):
            changes[transfer.chunk].append((transfer.moment, False))
    return changes


def _leaves(transfer: Transfer, tier: str) -> bool:
    # After an early write-back the copy stays until it is dropped.
    return transfer.source == tier and (transfer.target is None or transfer.reason == "evict")


def _presence(changes: list[tuple[int, bool]], begin: int, end: int) -> list[bool]:
    # Before its first change a chunk was as that change did not leave it.
    is_there = not changes[0][1] if changes else True
    presence = []
    position = 0
    for moment in range(begin, end):
        while position < len(changes) and changes[position][0] <= moment:
            is_there = changes[position][1]
            position += 1
        presence.append(is_there)
    return presence


def _spans(is_there: list[bool]) -> tuple[tuple[int, int], ...]:
    spans = []
    index = 0
    for present, group in groupby(is_there):
        first, index = index, index + sum(1 for _ in group)
        if present:
            spans.append((first, index))
    return tuple(spans)
