"""Storages over the chunks of a job's last committed step, in the process that resumes the job.

Nothing is copied: the chunks that the step manifest names are attached. Each joins the arena of the
kind of tensor that it holds, so that parameters and states are laid out as they were.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memtide._capi.client import Kind
from memtide._memory.alignment import aligned
from memtide._memory.arenas import MOST_STATES
from memtide._memory.managed_memory import ManagedMemory
from memtide._resume.manifest_writer import type_of
from memtide._resume.step_manifest import SavedTensor, StepManifest
from memtide.errors import DataLoss

_Span = tuple[int, int]  # The offset in the manifest's chunks, one after the other, and the bytes.


class RestoredStorages:
    """Storages over the tensors that a manifest names. DataLoss: two of them overlap, or one lies
    outside of the manifest's chunks."""

    def __init__(self, memory: ManagedMemory, manifest: StepManifest) -> None:
        self._storages: dict[_Span, torch.UntypedStorage] = {}
        chunk_bytes = memory.addresses.chunk_bytes
        spans = _rows_of(manifest)
        _check(sorted(spans), len(manifest.chunks) * chunk_bytes)
        lists = _lists_of(spans, chunk_bytes)
        if not manifest.chunks:
            return
        first = memory.client.attach(manifest.chunks)
        base = memory.addresses.base + first * chunk_bytes
        for key in set(lists.values()):
            list_spans = [span for span in sorted(spans) if lists[span[0] // chunk_bytes] == key]
            places = [first + chunk for chunk, its in lists.items() if its == key]
            located = [(base + offset, size_bytes) for offset, size_bytes in list_spans]
            storages = memory.arenas.of(*key).take_over(places, located)
            self._storages.update(zip(list_spans, storages, strict=True))
        memory.pressure.note_chunks()

    def storage(self, saved: SavedTensor) -> torch.UntypedStorage:
        """The storage over a saved tensor that is in chunks."""
        return self._storages[_span_of(saved)]


def _span_of(saved: SavedTensor) -> _Span:
    elements = 1
    for size in saved.shape:
        elements *= size
    return saved.offset_bytes, elements * type_of(saved).itemsize


def _tensors_in_chunks(manifest: StepManifest) -> Iterator[tuple[SavedTensor, Kind, int]]:
    """All saved tensors that are in chunks, with the kind and the row of each."""
    for optimizer in manifest.optimizers:
        for parameter in optimizer.parameters:
            if parameter.parameter.offset_bytes >= 0:
                yield parameter.parameter, Kind.PARAMETER, 0
            states = [saved for saved in parameter.states.values() if saved.offset_bytes >= 0]
            for row, saved in enumerate(states):
                yield saved, Kind.OPTIMIZER_STATE, min(row, MOST_STATES - 1)


def _rows_of(manifest: StepManifest) -> dict[_Span, tuple[Kind, int]]:
    return {_span_of(saved): (kind, row) for saved, kind, row in _tensors_in_chunks(manifest)}


def _check(spans: list[_Span], end: int) -> None:
    at = 0
    for offset, size_bytes in spans:
        if offset < at or offset + aligned(size_bytes) > end:
            raise DataLoss(
                f"the job's step manifest names {size_bytes} bytes at {offset} of its chunks' "
                f"{end}, where nothing can be before {at}"
            )
        at = offset + aligned(size_bytes)


def _lists_of(
    spans: dict[_Span, tuple[Kind, int]], chunk_bytes: int
) -> dict[int, tuple[Kind, int]]:
    """The arena of each chunk, as its kind and row. If rows share chunks, all are in row 0."""
    lists: dict[int, tuple[Kind, int]] = {}
    mixed = False
    for (offset, size_bytes), key in spans.items():
        for chunk in range(offset // chunk_bytes, (offset + size_bytes - 1) // chunk_bytes + 1):
            its = lists.setdefault(chunk, key)
            mixed |= its != key
            if its[0] is not key[0]:
                raise DataLoss("the job's step manifest has a parameter and a state in one chunk")
    return {chunk: (kind, 0 if mixed else row) for chunk, (kind, row) in lists.items()}
