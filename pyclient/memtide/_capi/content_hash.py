"""Digests of memory (client/memtide.h): XXH3-128 with a secret.

Equal bytes have equal digests in every process with the same secret. No client is needed. A secret
is `LEAST_SECRET_BYTES` or more of `os.urandom`. A process that knows it can make two contents with
one digest, so only processes that trust each other share a secret.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable

from memtide._capi.library import check, load_library

DIGEST_BYTES = 16
LEAST_SECRET_BYTES = 192


def hash_pieces(secret: bytes, pieces: Iterable[tuple[int, int]]) -> bytes:
    """The digest of pieces of memory in a row, each an address and a number of bytes.

    Where the bytes are cut does not matter. The pieces are in memory that the CPU can read. Other
    threads run meanwhile, but must not write to the pieces. Chunks that are not mapped are leased
    by page faults. InvalidArgument: the secret is too short, or a piece has no valid address.
    """
    table = array("Q")
    for address, size_bytes in pieces:
        table.extend((address, size_bytes))
    digest = (ctypes.c_uint8 * DIGEST_BYTES)()
    check(
        load_library().memtide_hash_pieces(
            secret, len(secret), table.buffer_info()[0], len(table) // 2, digest
        )
    )
    return bytes(digest)
