"""Step parts of several ranks: the part of the C interface (client/memtide.h) that begins them.

The sessions of one training, one for each rank (`Options`: rank, ranks), make a part once if they
want the same.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint8, c_void_p
from dataclasses import dataclass
from enum import IntEnum

from memtide._capi import library
from memtide._capi.library import DIGEST_BYTES, check
from memtide.errors import InvalidArgument


class PartState(IntEnum):
    """The state of a step part that was to begin."""

    COMPUTING = 1  # This process computes it.
    MADE = 2  # Another rank has computed it, and the written chunks have its results.
    NEEDS_DIGESTS = 3  # The digests of more chunks are needed first.


@dataclass(frozen=True)
class PartDifference:
    """How the part of another rank, which writes the same chunks, differs."""

    rank: int
    work: bool  # Whether it computes something else.
    reads: tuple[int, ...]  # The chunks that are read whose bytes differ there, by number.


@dataclass(frozen=True)
class SharedPart:
    """A step part of several ranks that was to begin. Only one that is COMPUTING is to be ended."""

    state: PartState
    number: int = 0  # For `end_part`.
    addresses: tuple[int, ...] = ()
    unknown_reads: tuple[int, ...] = ()  # Where digests are needed, by number of the chunk.
    difference: PartDifference | None = None  # Beside COMPUTING.


class SharedParts:
    """The call of a client that begins such parts. Safe to use from any thread."""

    _lib: ctypes.CDLL
    _handle: c_void_p

    def start_shared_part(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        work_digest: bytes,
        read_digests: Sequence[bytes] = (),
    ) -> SharedPart:
        """As `start_part`, of one of several ranks: the part is made once for all that want it.

        `work_digest` is of the operation with its options and step, and of where in the chunks its
        operands are; `read_digests`, one for each chunk that is read or none, are of the bytes that
        the part reads. A digest has 16 bytes, or none where one of a chunk is not given. Waits
        while another rank computes the part. After an error none has begun.
        """
        places = array("I", (*reads, *writes))
        addresses = array("Q", bytes(8 * len(places)))
        unknown, different = (array("I", bytes(4 * len(reads))) for _ in range(2))
        if len(work_digest) != DIGEST_BYTES:
            raise InvalidArgument(f"work_digest has {len(work_digest)} bytes, not {DIGEST_BYTES}")
        contents = library.PartContents(
            ctypes.sizeof(library.PartContents),
            (c_uint8 * DIGEST_BYTES)(*work_digest),
            _digest_table(read_digests, len(reads)),
        )
        part = library.SharedPart(
            struct_bytes=ctypes.sizeof(library.SharedPart),
            addresses=addresses.buffer_info()[0],
            unknown_reads=unknown.buffer_info()[0],
            different_reads=different.buffer_info()[0],
        )
        check(
            self._lib.memtide_start_shared_part(
                self._handle,
                places.buffer_info()[0],
                len(places),
                len(reads),
                byref(contents),
                byref(part),
            )
        )
        state = PartState(part.state)
        difference = None
        if part.has_difference:
            difference = PartDifference(
                part.different_rank,
                bool(part.different_work),
                tuple(different[: part.different_count]),
            )
        return SharedPart(
            state,
            part.part,
            tuple(addresses) if state is PartState.COMPUTING else (),
            tuple(unknown[: part.unknown_count]),
            difference,
        )


def _digest_table(digests: Sequence[bytes], reads: int) -> bytes | None:
    """The digests side by side, zeros for those not given; None: there are none."""
    if not digests:
        return None
    if len(digests) != reads or any(len(digest) not in (0, DIGEST_BYTES) for digest in digests):
        raise InvalidArgument(f"{reads} chunks are read, whose digests have {DIGEST_BYTES} bytes")
    return b"".join(digest or bytes(DIGEST_BYTES) for digest in digests)
