"""What the last step of a job has left in chunks, as storages of the process that goes on with it.

Nothing is copied: the chunks that the note names are attached, and each becomes part of the arena
of what it holds, so that parameters and states are laid out as they were.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memtide._native import Kind
from memtide._steps import MOST_STATES
from memtide.adopt import Adopter
from memtide.errors import DataLoss
from memtide.job_note import Kept, Note
from memtide.note_writer import type_of
from memtide.packing import aligned

_Span = tuple[int, int]  # Offset in the noted chunks, and bytes.


class Inherited:
    """Storages over what a note names. DataLoss: the note cannot be."""

    def __init__(self, adopter: Adopter, note: Note) -> None:
        self._storages: dict[_Span, torch.UntypedStorage] = {}
        chunk_bytes = adopter.chunk_bytes
        spans = _rows_of(note)
        _check(sorted(spans), len(note.chunks) * chunk_bytes)
        lists = _lists_of(spans, chunk_bytes)
        if not note.chunks:
            return
        first = adopter.client.attach(note.chunks)
        base = adopter.base + first * chunk_bytes
        for key in set(lists.values()):
            mine = [span for span in sorted(spans) if lists[span[0] // chunk_bytes] == key]
            places = [first + chunk for chunk, its in lists.items() if its == key]
            located = [(base + offset, size_bytes) for offset, size_bytes in mine]
            taken = adopter.take_over(*key, places, located)
            self._storages.update(zip(mine, taken, strict=True))

    def storage(self, kept: Kept) -> torch.UntypedStorage:
        """The one over a tensor that is in chunks."""
        return self._storages[_span_of(kept)]


def _span_of(kept: Kept) -> _Span:
    elements = 1
    for size in kept.shape:
        elements *= size
    return kept.offset_bytes, elements * type_of(kept).itemsize


def _kept_in(note: Note) -> Iterator[tuple[Kept, Kind, int]]:
    """All that is in chunks, with its kind and row."""
    for optimizer in note.optimizers:
        for each in optimizer.parameters:
            if each.parameter.offset_bytes >= 0:
                yield each.parameter, Kind.PARAMETER, 0
            states = [kept for kept in each.states.values() if kept.offset_bytes >= 0]
            for row, kept in enumerate(states):
                yield kept, Kind.OPTIMIZER_STATE, min(row, MOST_STATES - 1)


def _rows_of(note: Note) -> dict[_Span, tuple[Kind, int]]:
    return {_span_of(kept): (kind, row) for kept, kind, row in _kept_in(note)}


def _check(spans: list[_Span], end: int) -> None:
    at = 0
    for offset, size_bytes in spans:
        if offset < at or offset + aligned(size_bytes) > end:
            raise DataLoss(
                f"the job's note names {size_bytes} bytes at {offset} of its chunks' {end}, where "
                f"nothing can be before {at}"
            )
        at = offset + aligned(size_bytes)


def _lists_of(
    spans: dict[_Span, tuple[Kind, int]], chunk_bytes: int
) -> dict[int, tuple[Kind, int]]:
    """Which arena each chunk is for. Where rows share chunks, all are of the first."""
    lists: dict[int, tuple[Kind, int]] = {}
    mixed = False
    for (offset, size_bytes), key in spans.items():
        for chunk in range(offset // chunk_bytes, (offset + size_bytes - 1) // chunk_bytes + 1):
            its = lists.setdefault(chunk, key)
            mixed |= its != key
            if its[0] is not key[0]:
                raise DataLoss("the job's note has a parameter and a state in one chunk")
    return {chunk: (kind, 0 if mixed else row) for chunk, (kind, row) in lists.items()}
