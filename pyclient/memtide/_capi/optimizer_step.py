"""Offloaded optimizer steps: the part of the C interface (client/memtide.h) that runs them.

A part reads chunks, and its new content is written into others, their shadow chunks. `commit` then
exchanges the content of all pairs at once; until then no parameter and no state has changed.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from enum import IntFlag

from memtide._capi.library import check
from memtide._capi.lost_chunks import LostChunks
from memtide._capi.shared_part import SharedParts


class CommitFlag(IntFlag):
    """How memtide_commit commits, which says what each means."""

    KEEP_OLD_CONTENT = 1
    WITH_ALL_RANKS = 2


class Steps(SharedParts):
    """The calls of a client that step optimizers. Safe to use from any thread."""

    socket_dir: str  # Empty: the default directory of the node.
    lost: LostChunks

    def start_part(self, reads: Sequence[int], writes: Sequence[int]) -> tuple[int, list[int]]:
        """Begins a step part that this process computes. Returns its number, and the address of the
        chunk at each place, in host memory, until `end_part`: not those of the places.

        `writes` are shadow chunks, of which all bytes must be written. Several threads may have
        parts at once. ResourceExhausted: the part has more chunks than host memory can hold.
        """
        places = array("I", (*reads, *writes))
        part, addresses = c_uint64(), array("Q", bytes(8 * len(places)))
        with self.lost.named(reads):
            check(
                self._lib.memtide_start_part(
                    self._handle,
                    places.buffer_info()[0],
                    len(places),
                    len(reads),
                    byref(part),
                    addresses.buffer_info()[0],
                )
            )
        return part.value, list(addresses)

    def end_part(self, part: int, *, computed: bool, non_finite: int = 0) -> None:
        """Ends a step part. Unless it was computed, the written chunks hold nothing. `non_finite`:
        how many of its gradients are infinite or NaN, for the daemon's counter."""
        check(self._lib.memtide_end_part(self._handle, part, int(computed), non_finite))

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
        """Exchanges the content of places[i] and shadows[i], all at once, as the job's step `step`,
        or that of this rank.

        The shadow chunks are then empty, or with `keep_old_content` hold the old content. The step
        manifest replaces that of the last step. `with_all_ranks`: in a named job of ranks, waits
        for such commits of all others, and is one with them. `unwritten`: what `versions` gave for
        `places`, to commit only if none of them was written since. Aborted: a chunk stays in use,
        or was written. FailedPrecondition: a rank has ended. DeadlineExceeded: some ranks do not
        commit.
        """
        assert len(places) == len(shadows)
        firsts, seconds = array("I", places), array("I", shadows)
        ids = array("Q", [chunk_id for chunk_id, _ in unwritten])
        versions = array("Q", [version for _, version in unwritten])
        assert not unwritten or len(unwritten) == len(places)
        check(
            self._lib.memtide_commit(
                self._handle,
                step,
                firsts.buffer_info()[0],
                seconds.buffer_info()[0],
                len(firsts),
                ids.buffer_info()[0] if unwritten else None,
                versions.buffer_info()[0] if unwritten else None,
                CommitFlag.KEEP_OLD_CONTENT * keep_old_content
                + CommitFlag.WITH_ALL_RANKS * with_all_ranks,
                manifest,
                len(manifest),
            )
        )

    def committed(self) -> tuple[int, bytes]:
        """The number of the job's last committed step (0: none) and its step manifest."""
        step, manifest, size_bytes = c_uint64(), c_void_p(), c_size_t()
        check(
            self._lib.memtide_committed(
                self._handle, byref(step), byref(manifest), byref(size_bytes)
            )
        )
        try:
            return step.value, ctypes.string_at(manifest, size_bytes.value) if manifest else b""
        finally:
            self._lib.memtide_free_text(manifest)

    def chunk_ids(self, first_place: int, count: int) -> list[int]:
        """Ids of the chunks at consecutive places. They are valid while the job exists."""
        ids = array("Q", bytes(8 * count))
        check(self._lib.memtide_chunk_ids(self._handle, first_place, count, ids.buffer_info()[0]))
        return list(ids)

    def versions(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Id and version of the chunk at each place; write leases and commits raise the version."""
        table = array("I", places)
        ids, versions = array("Q", bytes(8 * len(table))), array("Q", bytes(8 * len(table)))
        check(
            self._lib.memtide_versions(
                self._handle,
                table.buffer_info()[0],
                len(table),
                ids.buffer_info()[0],
                versions.buffer_info()[0],
            )
        )
        return list(zip(ids, versions, strict=True))

    def attach(self, ids: Sequence[int]) -> int:
        """Places chunks of an ended session at consecutive places; returns the first."""
        table, first = array("Q", ids), c_uint32()
        check(
            self._lib.memtide_attach(self._handle, table.buffer_info()[0], len(table), byref(first))
        )
        return first.value
