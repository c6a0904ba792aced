"""The tensors that autograd saves in one iteration, by storage, and when it asks for them.

Each storage belongs to the call of a block in which it was saved, or to none. One that was saved in
an earlier block and that a later one was given is the later one's input: there it is kept or moved.

Moments are numbered as they were reported since the last iteration's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from memtide._activations.profile import ActivationBlock, ActivationProfile, Part, SavedBytes
from memtide._activations.rehearsal import Rehearsed

# A script that never steps has no end of an iteration.
_MOST_STORAGES = 200_000
MomentName = tuple[str, str]  # Its phase, and the name of a module or an optimizer.
_NEVER = _NO_BACKWARD = -1


class SavedStorage:
    """One storage, from the first time that it is saved."""

    __slots__ = ("block", "first", "last", "micro_batch", "packed", "part", "recording", "size")

    def __init__(self, recording: Recording, size_bytes: int, packed_moment: int) -> None:
        self.recording = recording
        self.size = size_bytes
        self.packed = packed_moment
        self.first = self.last = _NEVER  # Moments in which autograd asked for it.
        self.block: int | None = None  # The number of the block that saved it; None: outside.
        self.part = Part.REST
        self.micro_batch = 0

    def belong_to(self, block: int, part: Part, micro_batch: int) -> None:
        """A call of a block saves it, or was given it and saves it."""
        self.block, self.part, self.micro_batch = block, part, micro_batch

    def unpack(self) -> None:
        """Autograd asks for it."""
        self.recording.has_unpacked = True
        self.last = self.recording.moment
        if self.first == _NEVER:
            self.first = self.last


class Recording:
    """One iteration. Safe to use from any thread."""

    def __init__(self, moments: Sequence[MomentName]) -> None:
        """`moments`: those reported in the iteration, to which others are added while it runs."""
        self._moments = moments
        # Whether all that autograd saves was seen: nothing was recomputed.
        self.is_whole = True
        self.has_unpacked = False  # Since something was last saved outside of blocks.
        self.storages: list[SavedStorage] = []
        self._micro_batch = 0

    @property
    def moment(self) -> int:
        """The number of the moment that runs."""
        return max(0, len(self._moments) - 1)

    def pack(self, size_bytes: int) -> SavedStorage | None:
        """Autograd saves a storage, outside of blocks unless it is said to belong to one. None:
        there are too many."""
        if len(self.storages) >= _MOST_STORAGES:
            self.is_whole = False
            return None
        storage = SavedStorage(self, size_bytes, self.moment)
        if self.has_unpacked and torch._C._current_graph_task_id() == _NO_BACKWARD:
            self.has_unpacked = False
            self._micro_batch += 1
        storage.micro_batch = self._micro_batch
        self.storages.append(storage)
        return storage

    def profile(self, names: Sequence[str], known: Sequence[Rehearsed | None]) -> ActivationProfile:
        """The iteration, with the names of the blocks and what their rehearsal has shown."""
        of_blocks: list[list[SavedStorage]] = [[] for _ in names]
        others: list[SavedStorage] = []
        for storage in self.storages:
            (others if storage.block is None else of_blocks[storage.block]).append(storage)
        blocks = (
            _block(name, storages, rehearsed or Rehearsed())
            for name, storages, rehearsed in zip(names, of_blocks, known, strict=True)
        )
        return ActivationProfile(tuple(blocks), tuple(_one_by_one(others)))


def _block(name: str, storages: Iterable[SavedStorage], rehearsed: Rehearsed) -> ActivationBlock:
    calls: dict[tuple[int, Part], list[SavedStorage]] = {}
    for storage in storages:
        calls.setdefault((storage.micro_batch, storage.part), []).append(storage)
    return ActivationBlock(
        name=name,
        saved=tuple(_together(group) for group in calls.values()),
        forward_ns=round(rehearsed.forward_s * 1e9),
        forward_without_attention_ns=(
            round((rehearsed.forward_s - rehearsed.dear_s) * 1e9) if rehearsed.dear_s else 0
        ),
        recomputable=rehearsed.reason is None,
    )


def _one_by_one(storages: Iterable[SavedStorage]) -> Iterable[SavedBytes]:
    """Storages saved outside of blocks, together only where they are saved and needed together."""
    groups: dict[tuple[int, int, int, int], list[SavedStorage]] = {}
    for each in storages:
        key = each.packed, each.first, each.last, each.micro_batch
        groups.setdefault(key, []).append(each)
    return map(_together, groups.values())


def _together(storages: Sequence[SavedStorage]) -> SavedBytes:
    packed = max(storage.packed for storage in storages)
    asked_for = [storage for storage in storages if storage.first != _NEVER]
    return SavedBytes(
        part=storages[0].part,
        size_bytes=sum(storage.size for storage in storages),
        packed_moment=packed,
        # Storages that autograd never asks for are not needed later.
        first_unpacked_moment=min((storage.first for storage in asked_for), default=packed),
        last_unpacked_moment=max((storage.last for storage in asked_for), default=packed),
        micro_batch=storages[0].micro_batch,
    )
