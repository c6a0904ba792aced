"""Digests of memory: of the process's own, and of chunks that page faults bring."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from memtide import errors
from memtide._capi.client import Client, Kind
from memtide._capi.content_hash import DIGEST_BYTES, LEAST_SECRET_BYTES, hash_pieces
from memtide._capi.library import Options
from stepping_script import node_daemon

SECRET = bytes(i * 7 % 256 for i in range(LEAST_SECRET_BYTES))
# The digest of bytes(range(256)) * 4 with this secret, computed with version 0.8.1 of xxHash.
KNOWN = "95de6abcda9e466d2c47d7ba564ad4f2"


def pieces_of(buffer: ctypes.Array[ctypes.c_char], *sizes: int) -> list[tuple[int, int]]:
    """The buffer, cut into pieces of these sizes and the rest."""
    begin, end = ctypes.addressof(buffer), ctypes.addressof(buffer) + ctypes.sizeof(buffer)
    pieces = []
    for size in (*sizes, end - begin - sum(sizes)):
        pieces.append((begin, size))
        begin += size
    return pieces


def digest_of(secret: bytes, content: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(content, len(content))
    return hash_pieces(secret, pieces_of(buffer))


def test_a_digest_is_the_same_in_every_process_and_version() -> None:
    assert digest_of(SECRET, bytes(range(256)) * 4).hex() == KNOWN


def test_pieces_have_the_digest_of_their_bytes_in_a_row() -> None:
    content = os.urandom(5000)
    buffer = ctypes.create_string_buffer(content, len(content))
    whole = hash_pieces(SECRET, pieces_of(buffer))
    assert len(whole) == DIGEST_BYTES
    for sizes in ((0,), (1, 16, 240), (4999,), (5000,)):
        assert hash_pieces(SECRET, pieces_of(buffer, *sizes)) == whole
    assert hash_pieces(SECRET, reversed(pieces_of(buffer, 2500))) == digest_of(
        SECRET, content[2500:] + content[:2500]
    )


def test_no_pieces_have_the_digest_of_no_bytes() -> None:
    assert hash_pieces(SECRET, []) == digest_of(SECRET, b"") == hash_pieces(SECRET, [(0, 0)])


def test_another_byte_or_another_secret_gives_another_digest() -> None:
    content = os.urandom(300)
    other = content[:-1] + bytes([content[-1] ^ 1])
    digests = {
        digest_of(secret, each)
        for secret in (SECRET, os.urandom(LEAST_SECRET_BYTES))
        for each in (content, other)
    }
    assert len(digests) == 4


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="191 bytes"):
        hash_pieces(SECRET[:-1], [])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A session in a host pool of 32 MiB, with chunks of 2 MiB and an SSD."""
    with node_daemon(tmp_path, host_pool="32MiB") as socket_dir:
        opened = Client(Options(str(socket_dir), chunk_bytes=2 << 20))
        yield opened
        opened.close()


def test_chunks_that_are_on_ssd_are_hashed_through_their_page_faults(client: Client) -> None:
    chunks = 24
    place = client.allocate(Kind.GRADIENT, chunks)
    address = client.properties.base + place * client.properties.chunk_bytes
    size_bytes = chunks * client.properties.chunk_bytes
    content = os.urandom(size_bytes)
    ctypes.memmove(address, content, size_bytes)
    client.flush()
    faults = client.stats().faults
    half = size_bytes // 2 + 12345
    digest = hash_pieces(SECRET, [(address, half), (address + half, size_bytes - half)])
    assert digest == digest_of(SECRET, content)
    assert client.stats().faults >= faults + chunks
