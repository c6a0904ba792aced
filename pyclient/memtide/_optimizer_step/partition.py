"""Cuts an offloaded step into batches. Pure: addresses and sizes, no tensors and no client.

The tensors of one parameter (gradient, parameter, states) lie in different chunks and cross chunk
borders at different elements. A *part* is a run of elements in which none of them does. A *batch*
has consecutive parts over few chunks, so that several batches fit into host memory at a time. Its
parts may have different options, as parameter groups share chunks.

New content goes to shadow chunks, which are exchanged whole. So bytes of a written chunk that the
step does not change (frozen parameters, tensors that the client steps itself) are copied to its
shadow chunk, with the first batch that writes the chunk.

Ranks make once the whole content of the chunks that a batch writes. So only a batch that is
*apart*, which writes no chunk that another batch of the step writes, can be made once for them.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memtide._memory.alignment import ALIGNMENT_BYTES
from memtide._optimizer_step.torch_options import TorchOptions

Interval = tuple[int, int]  # Addresses [start, end).


@dataclass(frozen=True)
class Span:
    """A tensor's elements, in the order of their addresses."""

    address: int
    item_bytes: int


@dataclass(frozen=True)
class Geometry:
    """The addresses of places."""

    base: int
    chunk_bytes: int

    def place(self, address: int) -> int:
        """The place of an address."""
        return (address - self.base) // self.chunk_bytes

    def chunk(self, place: int) -> Interval:
        """The addresses of a place."""
        start = self.base + place * self.chunk_bytes
        return start, start + self.chunk_bytes

    def elements_to_border(self, span: Span) -> int:
        """The elements of a span that lie in its first place."""
        end = self.chunk(self.place(span.address))[1]
        return (end - span.address) // span.item_bytes


@dataclass(frozen=True)
class BatchLimits:
    """The most chunks of a batch, shadow chunks included."""

    chunks: int
    # The most chunks of a batch that is apart only with all of them; 0: no batch needs to be apart.
    chunks_apart: int = 0


@dataclass(frozen=True)
class Update:
    """The step of one parameter.

    `written` has the parameter and then its states; with a `rounded_format`, the first state is the
    master. `first_element` is the number of the parameter's first element in the optimizer. Where
    an update is of a run of a parameter's elements, `first` and `left` are as in `Part`.
    """

    options: TorchOptions
    elements: int
    gradient: Span
    written: tuple[Span, ...]
    first_element: int = 0
    first: int = 0
    left: int = 0


@dataclass(frozen=True)
class Part:
    """Elements of one update; each of its spans lies within one chunk.

    `first`: the number of the first one in its tensor. `left`: how many come after the last one.
    """

    options: TorchOptions
    elements: int
    gradient: int
    written: tuple[Interval, ...]
    first_element: int = 0
    first: int = 0
    left: int = 0


@dataclass
class Batch:
    """Parts that are stepped together, and what is copied into the same shadow chunks."""

    parts: list[Part] = field(default_factory=list)
    copies: list[Interval] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)  # The places of gradients.
    writes: set[int] = field(default_factory=set)  # The places of parameters and states.
    is_apart: bool = False  # No other batch of the step writes these places.

    def places_with(self, parts: Sequence[Part], geometry: Geometry) -> tuple[set[int], set[int]]:
        """The places that the batch would read and write with these parts, too."""
        reads = {geometry.place(part.gradient) for part in parts}
        writes = {geometry.place(start) for part in parts for start, _ in part.written}
        return self.reads | reads, self.writes | writes

    @property
    def places(self) -> set[int]:
        """All places that the batch reads: what it writes, it reads as well."""
        return self.reads | self.writes


def parts_of(update: Update, geometry: Geometry) -> Iterator[Part]:
    """Cuts an update at every chunk border that one of its tensors crosses."""
    spans = (update.gradient, *update.written)
    done = 0
    while done < update.elements:
        count = update.elements - done
        for span in spans:
            rest = Span(span.address + done * span.item_bytes, span.item_bytes)
            count = min(count, geometry.elements_to_border(rest))
        yield Part(
            update.options,
            count,
            update.gradient.address + done * update.gradient.item_bytes,
            tuple(
                (
                    span.address + done * span.item_bytes,
                    span.address + (done + count) * span.item_bytes,
                )
                for span in update.written
            ),
            update.first_element + done,
            update.first + done,
            update.left + update.elements - done - count,
        )
        done += count


def batches_of(
    updates: Sequence[Update],
    copies: Mapping[int, Sequence[Interval]],
    geometry: Geometry,
    limits: BatchLimits,
    cuts: Collection[int] = (),
) -> list[Batch]:
    """Groups updates into batches of at most `limits.chunks` chunks.

    A part that needs more is a batch by itself. `copies`: by place, what is copied with the first
    batch that writes it. `cuts`: addresses in parameters at which a batch begins.
    """
    parts = [
        part for update in sorted(updates, key=_address) for part in parts_of(update, geometry)
    ]
    batches = [Batch()]
    for together in _apart(parts, geometry) if limits.chunks_apart else [parts]:
        is_apart = False
        if limits.chunks_apart:
            reads, writes = Batch().places_with(together, geometry)
            most = max(limits.chunks, limits.chunks_apart)
            is_apart = len(reads) + 2 * len(writes) <= most
        for some in [together] if is_apart else [[part] for part in together]:
            batch = batches[-1]
            reads, writes = batch.places_with(some, geometry)
            chunks = len(reads) + 2 * len(writes)
            begins = some[0].written[0][0] in cuts or batch.is_apart != is_apart
            if batch.parts and (chunks > limits.chunks or begins):
                batch = Batch()
                batches.append(batch)
                reads, writes = batch.places_with(some, geometry)
            batch.is_apart = is_apart
            batch.parts += some
            batch.reads, batch.writes = reads, writes
    copied: set[int] = set()
    for batch in batches:
        for place in sorted(batch.writes - copied):
            batch.copies += copies.get(place, ())
        copied |= batch.writes
    return batches if batches[-1].parts else []


def _apart(parts: Iterable[Part], geometry: Geometry) -> Iterable[list[Part]]:
    """Divides parts so that no two lists write a chunk in common."""
    leaders: dict[int, int] = {}  # A forest over the places that are written.

    def leader(place: int) -> int:
        while (above := leaders.setdefault(place, place)) != place:
            leaders[place] = leaders[above]
            place = above
        return place

    for part in parts:
        first, *others = (geometry.place(start) for start, _ in part.written)
        for other in others:
            leaders[leader(other)] = leader(first)
    lists: dict[int, list[Part]] = {}
    for part in parts:
        lists.setdefault(leader(geometry.place(part.written[0][0])), []).append(part)
    return lists.values()


def copies_of(
    updates: Sequence[Update], live: Sequence[Interval], geometry: Geometry
) -> dict[int, list[Interval]]:
    """By place, the live bytes that a step does not write in the places that it does.

    `live`: the intervals of all live tensors, sorted and disjoint.
    """
    covered: dict[int, list[Interval]] = {}
    for update in updates:
        for span in update.written:
            start, end = span.address, span.address + update.elements * span.item_bytes
            for place in range(geometry.place(start), geometry.place(end - 1) + 1):
                first, border = geometry.chunk(place)
                covered.setdefault(place, []).append((max(start, first), min(end, border)))
    inside = live_in(covered, live, geometry)
    return {
        place: uncovered(inside[place], sorted(intervals)) for place, intervals in covered.items()
    }


def live_in(
    places: Iterable[int], live: Sequence[Interval], geometry: Geometry
) -> dict[int, list[Interval]]:
    """By place, the live bytes in it. `live`: as in `copies_of`."""
    starts = [start for start, _ in live]
    return {place: _within(live, starts, geometry.chunk(place)) for place in places}


def _address(update: Update) -> int:
    return update.written[0].address


def _within(live: Sequence[Interval], starts: list[int], chunk: Interval) -> list[Interval]:
    """The intersection of the sorted intervals `live` with a chunk; `starts` are their starts."""
    first, end = chunk
    intervals = []
    for at in range(max(0, bisect.bisect_right(starts, first) - 1), len(live)):
        start, stop = live[at]
        if start >= end:
            break
        if stop > first:
            intervals.append((max(start, first), min(stop, end)))
    return intervals


def uncovered(live: Sequence[Interval], covered: Sequence[Interval]) -> list[Interval]:
    """The bytes of `live` that are in no interval of `covered`; each list is sorted and disjoint.

    Intervals between which there is only padding are merged, so that there are fewer copies.
    """
    intervals: list[Interval] = []
    at = 0
    for start, end in live:
        while at < len(covered) and covered[at][1] <= start:
            at += 1
        scan = at
        while start < end:
            border = covered[scan][0] if scan < len(covered) else end
            if border > start:
                _append(intervals, (start, min(end, border)))
            if border >= end:
                break
            start = max(start, covered[scan][1])
            scan += 1
    return intervals


def _append(intervals: list[Interval], interval: Interval) -> None:
    if intervals and interval[0] - intervals[-1][1] < ALIGNMENT_BYTES:
        intervals[-1] = (intervals[-1][0], interval[1])
    else:
        intervals.append(interval)
