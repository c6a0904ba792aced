"""Which parts of a coming step can be made while backward still works. Pure: no tensors, no client.

A plan is what an optimizer's last step was, cut into *units*: what lies in the same few chunks, so
that each chunk is brought and written once. When all gradients that a unit needs have come as
often as before that step, the unit can be made, with the options that hold then. What a plan
expects and does not come costs time and nothing else: at the step, only what turns out to be the
same counts.

A unit waits while its chunks are needed: for a parameter whose gradient is still to come, for a
gradient that is still to be written, or, behind the latest gradient, for the next one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from memtide._native import Kind
from memtide._steps import UNCOUNTED, StepOptions
from memtide.step_pieces import Geometry, Interval, Span, Update

_MOST_REST_STEPS = 64
_NAMES = frozenset(f.name for f in fields(StepOptions)) - {"rule", "step", "fresh_states"}


@dataclass
class Seat:
    """One parameter. `group`: its number among the optimizer's; `expected`: how often its gradient
    came before the last step."""

    update: Update
    group: int
    expected: int
    gradient: int = 0  # Its address since the last step; 0: not known.

    @property
    def address(self) -> int:
        """The parameter's."""
        return self.update.written[0].address

    @property
    def gradient_span(self) -> Span:
        """Where its gradient is now."""
        return Span(self.gradient, self.update.gradient.item_bytes)


@dataclass
class Piece:
    """A run of a parameter's elements."""

    seat: Seat
    first: int
    elements: int
    places: range = range(0)  # Of the parameter.

    def span(self, whole: Span) -> Span:
        """Its elements of one of the parameter's tensors."""
        return Span(whole.address + self.first * whole.item_bytes, whole.item_bytes)

    @property
    def address(self) -> int:
        """Of its first element, in the parameter."""
        return self.span(self.seat.update.written[0]).address


@dataclass
class Unit:
    """What is stepped together, of each parameter one piece. `copies`: what its calls copy, by
    place."""

    pieces: list[Piece] = field(default_factory=list)
    copies: dict[int, Sequence[Interval]] = field(default_factory=dict)
    missing: int = 0  # Of its parameters, those whose gradients are still to come.


class Plan:
    """The units of one optimizer."""

    def __init__(
        self,
        seats: Iterable[Seat],
        copies: Mapping[int, Sequence[Interval]],
        geometry: Geometry,
        most_chunks: int,
    ) -> None:
        self._geometry = geometry
        self.seats = {seat.address: seat for seat in sorted(seats, key=lambda one: one.address)}
        self.units = _units_of(list(self.seats.values()), geometry, most_chunks)
        self.cuts = frozenset(unit.pieces[0].address for unit in self.units)
        self.kinds: dict[int, Kind] = {}  # Of the places that are written.
        self.steps = 1  # In a row that were as this one.
        self._rest, self._next_rest = 0, 2
        self._units_of: dict[int, list[Unit]] = {}
        for unit in self.units:
            for piece in unit.pieces:
                piece.places = self._piece_places(piece.seat.update.written[0], piece)
                self._units_of.setdefault(piece.seat.address, []).append(unit)
        self._take_copies(copies)
        self._begin()

    def again(self, seats: Collection[Seat], copies: Mapping[int, Sequence[Interval]]) -> bool:
        """Another step has been made; whether the plan holds for it, too, and so for the next."""
        if len(seats) != len(self.seats) or not all(map(self._is_as, seats)):
            return False
        for seat in seats:
            self.seats[seat.address].update = seat.update
        self.steps += 1
        self._rest = max(0, self._rest - 1)
        self._take_copies(copies)
        self._begin()
        return True

    @property
    def hopeful(self) -> bool:
        """Whether it is worth trying: two steps were alike, and no attempt was in vain lately."""
        return self.steps > 1 and not self._rest and not self._surprised

    def judge(self, *, useful: bool) -> None:
        """Says of an attempt whether it was of use."""
        if useful:
            self._next_rest = 2
        else:
            self._rest = self._next_rest + 1  # The step that is being made is none of them.
            self._next_rest = min(_MOST_REST_STEPS, 2 * self._next_rest)

    def holds(self, gradient: Mapping[int, int]) -> None:
        """Gradients that are there before backward begins, by their parameters' addresses."""
        for address, at in gradient.items():
            self._move_gradient(self.seats[address], at)

    def came(self, address: int, times: int, gradient: int) -> list[Unit]:
        """A gradient came, for the `times`-th time since the last step; what can be made now."""
        seat = self.seats[address]
        self._move_gradient(seat, gradient)
        if times > seat.expected:
            self._surprised = True
        if times != seat.expected or self._surprised:
            return []
        self._pending -= 1
        gradients = self._gradient_places(seat)
        _count(self._parameters, self._places(seat.update.written[0], seat), -1)
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
        """What the next step makes of a unit, if nothing changes until then."""
        options = functools.cache(lambda last, group: next_options(last, groups[group]))
        return [
            Update(
                options(piece.seat.update.options, piece.seat.group),
                piece.elements,
                piece.span(piece.seat.gradient_span),
                tuple(map(piece.span, piece.seat.update.written)),
                piece.seat.update.first_element + piece.first,
            )
            for piece in unit.pieces
        ]

    def _begin(self) -> None:
        self._surprised = False
        self._pending = len(self.seats)
        self._complete: list[Unit] = []
        self._open = -1  # The place where the next gradient may come to be.
        # For each place, how many pending parameters, and their gradients, are there.
        self._parameters: Counter[int] = Counter()
        self._gradients: Counter[int] = Counter()
        for seat in self.seats.values():
            seat.gradient = 0
            _count(self._parameters, self._places(seat.update.written[0], seat), 1)
        for unit in self.units:
            unit.missing = len(unit.pieces)

    def _is_as(self, seat: Seat) -> bool:
        mine = self.seats.get(seat.address)
        return (
            mine is not None
            and mine.update.written == seat.update.written
            and (mine.update.elements, mine.group, mine.expected)
            == (seat.update.elements, seat.group, seat.expected)
        )

    def _is_free(self, unit: Unit) -> bool:
        for piece in unit.pieces:
            gradients = self._piece_places(piece.seat.gradient_span, piece)
            if self._open in gradients or any(self._gradients[place] for place in gradients):
                return False
            if any(self._parameters[place] for place in piece.places):
                return False
        return True

    def _take_copies(self, copies: Mapping[int, Sequence[Interval]]) -> None:
        taken: set[int] = set()
        for unit in self.units:
            written = {
                place
                for piece in unit.pieces
                for span in piece.seat.update.written
                for place in self._piece_places(span, piece)
            }
            unit.copies = {place: copies.get(place, ()) for place in written - taken}
            taken |= written

    def _move_gradient(self, seat: Seat, address: int) -> None:
        if seat.gradient == address:
            return
        if seat.gradient:
            _count(self._gradients, self._gradient_places(seat), -1)
        seat.gradient = address
        _count(self._gradients, self._gradient_places(seat), 1)

    def _gradient_places(self, seat: Seat) -> range:
        return self._places(seat.gradient_span, seat)

    def _piece_places(self, whole: Span, piece: Piece) -> range:
        return _places_of(piece.span(whole), piece.elements, self._geometry)

    def _places(self, span: Span, seat: Seat) -> range:
        return _places_of(span, seat.update.elements, self._geometry)


def _count(counts: Counter[int], places: range, change: int) -> None:
    for place in places:
        counts[place] += change


def next_options(options: StepOptions, group: Mapping[str, Any]) -> StepOptions:
    """The options of the step after one with `options`, as its group says now."""
    told = {name: group[name] for name in _NAMES & group.keys()}
    if "betas" in group:
        told["beta1"], told["beta2"] = group["betas"]
    values = {name: type(getattr(options, name))(value) for name, value in told.items()}
    # Some rules do not count their steps.
    step = options.step + (options.rule not in UNCOUNTED)
    return replace(options, step=step, fresh_states=False, **values)


def _units_of(seats: Sequence[Seat], geometry: Geometry, most_chunks: int) -> list[Unit]:
    units: list[Unit] = []
    reads: set[int] = set()
    writes: set[int] = set()
    for seat in seats:
        for piece in _pieces_of(seat, geometry):
            gradient = piece.span(seat.update.gradient)
            its_reads = set(_places_of(gradient, piece.elements, geometry))
            its_writes = {
                place
                for span in seat.update.written
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
    if unit.pieces and unit.pieces[-1].seat is piece.seat:
        unit.pieces[-1].elements += piece.elements
    else:
        unit.pieces.append(piece)


def _pieces_of(seat: Seat, geometry: Geometry) -> Iterator[Piece]:
    """Cuts a parameter where it, or a state of it, crosses the border of a chunk."""
    first = 0
    while first < seat.update.elements:
        rest = Piece(seat, first, seat.update.elements - first)
        for span in map(rest.span, seat.update.written):
            rest.elements = min(rest.elements, geometry.elements_to_border(span))
        first += rest.elements
        yield rest


def _places_of(span: Span, elements: int, geometry: Geometry) -> range:
    last = span.address + elements * span.item_bytes - 1
    return range(geometry.place(span.address), geometry.place(last) + 1)
