"""The plan of a speculative step: which step parts can be computed while backward still runs.

Pure: no tensors, no client. A plan repeats the last step of an optimizer, cut into *units*. A unit
lies in a few chunks, so that each chunk is fetched and written once. A unit can be computed when
each of its gradients has been accumulated as often as before the last step; it takes the options
that the optimizer has then. A wrong prediction costs time and nothing else: the step itself counts
only the parts that turn out to be its own.

A unit waits while its chunks are still in use: they hold a parameter whose gradient is still to
come, or a gradient that is still to be written, or the next gradient will lie in the same chunk,
behind the latest one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memtide._capi.client import Kind
from memtide._optimizer_step.partition import Geometry, Interval, Span, Update

_MAX_BACKOFF_STEPS = 64


@dataclass
class ParameterSlot:
    """One parameter of a plan.

    `group`: the number of its parameter group in the optimizer. `expected`: how often its gradient
    was accumulated before the last step.
    """

    update: Update
    group: int
    expected: int
    gradient: int = 0  # The gradient's address since the last step; 0: unknown.

    @property
    def address(self) -> int:
        """The address of the parameter."""
        return self.update.written[0].address

    @property
    def gradient_span(self) -> Span:
        """The span of the gradient, where it is now."""
        return Span(self.gradient, self.update.gradient.item_bytes)


@dataclass
class Piece:
    """A run of a parameter's elements."""

    slot: ParameterSlot
    first: int
    elements: int
    places: range = range(0)  # The places of these elements of the parameter.

    def span(self, whole: Span) -> Span:
        """The span of these elements in `whole`, one of the parameter's tensors."""
        return Span(whole.address + self.first * whole.item_bytes, whole.item_bytes)

    @property
    def address(self) -> int:
        """The address of the first element in the parameter."""
        return self.span(self.slot.update.written[0]).address


@dataclass
class Unit:
    """Pieces of several parameters that are stepped together. `copies`: by place, what the unit's
    calls copy."""

    pieces: list[Piece] = field(default_factory=list)
    copies: dict[int, Sequence[Interval]] = field(default_factory=dict)
    missing: int = 0  # The number of pieces whose gradients are still to come.


class SpeculativePlan:
    """The units of one optimizer."""

    def __init__(
        self,
        slots: Iterable[ParameterSlot],
        copies: Mapping[int, Sequence[Interval]],
        geometry: Geometry,
        most_chunks: int,
    ) -> None:
        self._geometry = geometry
        self.slots = {slot.address: slot for slot in sorted(slots, key=lambda one: one.address)}
        self.units = _units_of(list(self.slots.values()), geometry, most_chunks)
        self.cuts = frozenset(unit.pieces[0].address for unit in self.units)
        self.kinds: dict[int, Kind] = {}  # By place that is written, the kind of its chunk.
        self.steps = 1  # Consecutive steps that matched this plan.
        # Steps without an attempt: those that remain now, and those after the next failure.
        self._backoff, self._next_backoff = 0, 2
        self._units_of: dict[int, list[Unit]] = {}
        for unit in self.units:
            for piece in unit.pieces:
                piece.places = self._piece_places(piece.slot.update.written[0], piece)
                self._units_of.setdefault(piece.slot.address, []).append(unit)
        self._complete: list[Unit] = []  # Units whose gradients are there but not yet their chunks.
        self._take_copies(copies)
        self._begin()

    def advance(
        self, slots: Collection[ParameterSlot], copies: Mapping[int, Sequence[Interval]]
    ) -> bool:
        """Takes over another step of the optimizer; returns whether the plan matches it, and so
        predicts the next one."""
        if len(slots) != len(self.slots) or not all(map(self._is_as, slots)):
            return False
        for slot in slots:
            self.slots[slot.address].update = slot.update
        self.steps += 1
        self._backoff = max(0, self._backoff - 1)
        self._take_copies(copies)
        self._begin()
        return True

    @property
    def worth_attempting(self) -> bool:
        """Whether an attempt is worth its time: two steps were alike, no recent attempt failed, and
        no gradient was accumulated too often since."""
        return self.steps > 1 and not self._backoff and not self._mispredicted

    def record_outcome(self, *, useful: bool) -> None:
        """Records whether an attempt was useful. After a useless one the plan makes no attempt
        for some steps, twice as many each time."""
        if useful:
            self._next_backoff = 2
        else:
            # The present step counts too: it ends with `advance`.
            self._backoff = self._next_backoff + 1
            self._next_backoff = min(_MAX_BACKOFF_STEPS, 2 * self._next_backoff)

    def set_gradients(self, gradient: Mapping[int, int]) -> None:
        """Sets the addresses of gradients that exist before backward begins, by their parameters'
        addresses."""
        for address, at in gradient.items():
            self._move_gradient(self.slots[address], at)

    def record_gradient(self, address: int, times: int, gradient: int) -> list[Unit]:
        """Records that a gradient was accumulated, for the `times`-th time since the last step.
        Returns the units that can be computed now."""
        slot = self.slots[address]
        self._move_gradient(slot, gradient)
        if times > slot.expected:
            self._mispredicted = True
        if times != slot.expected or self._mispredicted:
            return []
        self._pending -= 1
        gradients = self._gradient_places(slot)
        _count(self._parameters, self._places(slot.update.written[0], slot), -1)
        _count(self._gradients, gradients, -1)
        self._open = gradients[-1] if self._pending else -1
        for unit in self._units_of[address]:
            unit.missing -= 1
            if not unit.missing:
                self._complete.append(unit)
        ready = [unit for unit in self._complete if self._is_free(unit)]
        self._complete = [unit for unit in self._complete if unit not in ready]
        return ready

    def updates_of(self, unit: Unit, groups: Sequence[Mapping[str, Any]]) -> list[Update]:
        """The updates of a unit in the next step, if nothing changes until then."""
        options = functools.cache(lambda last, group: last.following(groups[group]))
        return [
            Update(
                options(piece.slot.update.options, piece.slot.group),
                piece.elements,
                piece.span(piece.slot.gradient_span),
                tuple(map(piece.span, piece.slot.update.written)),
                piece.slot.update.first_element + piece.first,
                piece.first,
                piece.slot.update.elements - piece.first - piece.elements,
            )
            for piece in unit.pieces
        ]

    def _begin(self) -> None:
        self._mispredicted = False
        self._pending = len(self.slots)
        self._complete = []
        self._open = -1  # The place in which the next gradient may be allocated.
        # By place, the number of parameters whose gradients are pending, and of these gradients.
        self._parameters: Counter[int] = Counter()
        self._gradients: Counter[int] = Counter()
        for slot in self.slots.values():
            slot.gradient = 0
            _count(self._parameters, self._places(slot.update.written[0], slot), 1)
        for unit in self.units:
            unit.missing = len(unit.pieces)

    def _is_as(self, slot: ParameterSlot) -> bool:
        known_slot = self.slots.get(slot.address)
        return (
            known_slot is not None
            and known_slot.update.written == slot.update.written
            and (known_slot.update.elements, known_slot.group, known_slot.expected)
            == (slot.update.elements, slot.group, slot.expected)
        )

    def _is_free(self, unit: Unit) -> bool:
        for piece in unit.pieces:
            gradients = self._piece_places(piece.slot.gradient_span, piece)
            if self._open in gradients or any(self._gradients[place] for place in gradients):
                return False
            if any(self._parameters[place] for place in piece.places):
                return False
        return True

    def _take_copies(self, copies: Mapping[int, Sequence[Interval]]) -> None:
        written_before: set[int] = set()
        for unit in self.units:
            written = {
                place
                for piece in unit.pieces
                for span in piece.slot.update.written
                for place in self._piece_places(span, piece)
            }
            unit.copies = {place: copies.get(place, ()) for place in written - written_before}
            written_before |= written

    def _move_gradient(self, slot: ParameterSlot, address: int) -> None:
        if slot.gradient == address:
            return
        if slot.gradient:
            _count(self._gradients, self._gradient_places(slot), -1)
        slot.gradient = address
        _count(self._gradients, self._gradient_places(slot), 1)

    def _gradient_places(self, slot: ParameterSlot) -> range:
        return self._places(slot.gradient_span, slot)

    def _piece_places(self, whole: Span, piece: Piece) -> range:
        return _places_of(piece.span(whole), piece.elements, self._geometry)

    def _places(self, span: Span, slot: ParameterSlot) -> range:
        return _places_of(span, slot.update.elements, self._geometry)


def _count(counts: Counter[int], places: range, change: int) -> None:
    for place in places:
        counts[place] += change


def _units_of(slots: Sequence[ParameterSlot], geometry: Geometry, most_chunks: int) -> list[Unit]:
    units: list[Unit] = []
    reads: set[int] = set()
    writes: set[int] = set()
    for slot in slots:
        for piece in _pieces_of(slot, geometry):
            gradient = piece.span(slot.update.gradient)
            its_reads = set(_places_of(gradient, piece.elements, geometry))
            its_writes = {
                place
                for span in slot.update.written
                for place in _places_of(piece.span(span), piece.elements, geometry)
            }
            if not units or len(reads | its_reads) + 2 * len(writes | its_writes) > most_chunks:
                units.append(Unit())
                reads, writes = set(), set()
            _add(units[-1], piece)
            reads |= its_reads
            writes |= its_writes
    return units


def _add(unit: Unit, piece: Piece) -> None:
    if unit.pieces and unit.pieces[-1].slot is piece.slot:
        unit.pieces[-1].elements += piece.elements
    else:
        unit.pieces.append(piece)


def _pieces_of(slot: ParameterSlot, geometry: Geometry) -> Iterator[Piece]:
    """Cuts a parameter where it, or one of its states, crosses a chunk border."""
    first = 0
    while first < slot.update.elements:
        rest = Piece(slot, first, slot.update.elements - first)
        for span in map(rest.span, slot.update.written):
            rest.elements = min(rest.elements, geometry.elements_to_border(span))
        first += rest.elements
        yield rest


def _places_of(span: Span, elements: int, geometry: Geometry) -> range:
    last = span.address + elements * span.item_bytes - 1
    return range(geometry.place(span.address), geometry.place(last) + 1)
