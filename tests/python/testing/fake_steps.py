"""The step parts of the fake client, and their commits."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

from memtide._capi.client import Properties
from memtide._capi.library import DIGEST_BYTES
from memtide._capi.shared_part import PartState, SharedPart
from memtide.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound

_FIRST_ID = 1000
_PATIENCE_S = 30


class FakeSteps:
    """Has the methods of memtide._capi.optimizer_step.Steps. Unwritten content is NaN."""

    properties: Properties
    kinds: dict[int, Any]
    _memory: mmap.mmap

    def __init__(self) -> None:
        # The places that each part of this process reads, and those that it writes.
        self.parts: list[tuple[list[int], list[int]]] = []
        # Open parts: the memory of the written chunks, and of those that are read.
        self._open: dict[int, dict[int, bytearray]] = {}
        self._read: dict[int, list[bytearray]] = {}
        self.committed_steps = 0
        self.before_commit: Callable[[], object] = lambda: None
        self.commits_with_all_ranks = 0
        self.committed_manifest = b""
        # The error that is raised for a part, by its number.
        self.fail_part: dict[int, Exception] = {}
        self.before_part: Callable[[], None] = lambda: None
        self._begun: set[int] = set()
        self._step_lock = threading.Lock()
        self.use_ended = threading.Condition()

    @property
    def begun_parts(self) -> int:
        """How many parts have begun."""
        return len(self.parts)

    def start_part(self, reads: Sequence[int], writes: Sequence[int]) -> tuple[int, list[int]]:
        """The chunks are elsewhere than at their places, as with a daemon."""
        self.before_part()
        with self._step_lock:
            self.parts.append((list(reads), list(writes)))
            number = self.begun_parts
        if error := self.fail_part.get(number):
            raise error
        places = (*reads, *writes)
        assert len({*places}) == len(places)
        with self.use_ended:
            if not self.use_ended.wait_for(
                lambda: not any({*writes} & open_part.keys() for open_part in self._open.values()),
                _PATIENCE_S,
            ):
                raise FailedPrecondition("another part writes the same chunk")
            self._begin({*reads}, {*writes})
            chunks = {place: bytearray(self._bytes(place)) for place in places}
            self._open[number] = {place: chunks[place] for place in writes}
            self._read[number] = [chunks[place] for place in reads]
        return number, [
            ctypes.addressof(ctypes.c_char.from_buffer(chunk)) for chunk in chunks.values()
        ]

    def start_shared_part(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        work_digest: bytes,
        read_digests: Sequence[bytes] = (),
    ) -> SharedPart:
        """This is the only rank, which computes every part."""
        assert len(work_digest) == DIGEST_BYTES
        assert not read_digests or len(read_digests) == len(reads)
        number, addresses = self.start_part(reads, writes)
        return SharedPart(PartState.COMPUTING, number, tuple(addresses))

    def end_part(self, part: int, *, computed: bool, non_finite: int = 0) -> None:
        with self.use_ended:
            del self._read[part]
            for place, chunk in self._open.pop(part).items():
                self._memory[self._slice(place)] = bytes(chunk) if computed else self._lost()
            self.use_ended.notify_all()

    def _lost(self) -> bytes:
        return b"\xff" * self.properties.chunk_bytes

    def _begin(self, reads: set[int], writes: set[int]) -> None:
        if (reads | writes) - self.kinds.keys():
            raise NotFound("no chunk there")
        with self.use_ended:
            if not self.use_ended.wait_for(
                lambda: not (reads | writes) & self.in_use(), _PATIENCE_S
            ):
                raise FailedPrecondition("in use")
        for place in writes - self._begun:
            self._fill_place(place, 0xFF)
        self._begun |= writes

    def commit(
        self,
        step: int,
        places: Sequence[int],
        shadows: Sequence[int],
        manifest: bytes,
        *,
        keep_old_content: bool,
        with_all_ranks: bool = False,
        unwritten: Sequence[tuple[int, int]] = (),
    ) -> None:
        if step == self.committed_steps:
            return
        self.before_commit()
        if unwritten and list(unwritten) != self.versions(places):
            raise Aborted("a chunk was written meanwhile")
        self.commits_with_all_ranks += with_all_ranks
        if step != self.committed_steps + 1:
            raise FailedPrecondition("not the next step")
        if len({*places, *shadows}) != len(places) + len(shadows):
            raise InvalidArgument("a place twice")
        for place, shadow in zip(places, shadows, strict=True):
            if self.kinds[place] is not self.kinds[shadow]:
                raise InvalidArgument("unlike kinds")
            old, new = self._bytes(place), self._bytes(shadow)
            self._memory[self._slice(place)] = new
            self._memory[self._slice(shadow)] = old if keep_old_content else bytes(len(old))
        self.committed_steps, self.committed_manifest = step, manifest
        self._begun.clear()

    def chunk_ids(self, first_place: int, count: int) -> list[int]:
        return [place + _FIRST_ID for place in range(first_place, first_place + count)]

    def versions(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """The id of each chunk, and a number that changes with its content."""
        if any(place not in self.kinds for place in places):
            raise NotFound("no chunk there")
        return [(place + _FIRST_ID, hash(self._bytes(place))) for place in places]

    def attach(self, ids: Sequence[int]) -> int:
        """Attaches copies, because here the session that has the chunks is still this one."""
        places = [chunk_id - _FIRST_ID for chunk_id in ids]
        if any(place not in self.kinds for place in places):
            raise NotFound("no such chunk")
        first = self.allocate(self.kinds[places[0]], len(ids))
        for number, place in enumerate(places):
            self.kinds[first + number] = self.kinds[place]
            self._memory[self._slice(first + number)] = self._bytes(place)
        return first

    def committed(self) -> tuple[int, bytes]:
        return self.committed_steps, self.committed_manifest

    def _place(self, address: int) -> int:
        return (address - self.properties.base) // self.properties.chunk_bytes

    def _slice(self, place: int) -> slice:
        size = self.properties.chunk_bytes
        return slice(place * size, (place + 1) * size)

    def _bytes(self, place: int) -> bytes:
        return self._memory[self._slice(place)]

    def _fill_place(self, place: int, value: int) -> None:
        self._memory[self._slice(place)] = bytes([value]) * self.properties.chunk_bytes

    def in_use(self) -> set[int]:
        raise NotImplementedError

    def allocate(self, kind: Any, count: int) -> int:
        raise NotImplementedError
