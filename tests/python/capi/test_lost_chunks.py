"""Errors of lost chunks name the parameters that are in them."""

from __future__ import annotations

import pytest
from memtide._capi.lost_chunks import LostChunks
from memtide.errors import DataLoss, ResourceExhausted

_CHUNK_BYTES = 1 << 21
_BASE = 16 * _CHUNK_BYTES


def lost_chunks(names: list[str]) -> LostChunks:
    """Chunk 100 + i is at place i; those of place 3 have these names."""
    chunk = (_BASE + 3 * _CHUNK_BYTES, _BASE + 4 * _CHUNK_BYTES)
    return LostChunks(
        lambda place: 100 + place,
        _BASE,
        _CHUNK_BYTES,
        lambda first, end: names if (first, end) == chunk else [],
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.weight"], "chunk 103: wrong bytes. In the chunk: a.weight"),
        (list("abcde"), "chunk 103: wrong bytes. In the chunk: a, b, c and 2 more"),
        ([], "chunk 103: wrong bytes"),
    ],
)
def test_the_parameters_of_the_chunk_are_named(names: list[str], message: str) -> None:
    with pytest.raises(DataLoss) as error, lost_chunks(names).named([1, 3]):
        raise DataLoss("chunk 103: wrong bytes")
    assert str(error.value) == message


def test_a_chunk_of_no_parameter_and_other_errors_stay_as_they_are() -> None:
    lost = lost_chunks(["a.weight"])
    for places, message in (([1], "chunk 103: wrong bytes"), ([1, 3], "lost"), ([3], "chunk 1034")):
        with pytest.raises(DataLoss) as error, lost.named(places):
            raise DataLoss(message)
        assert str(error.value) == message
    with pytest.raises(ResourceExhausted, match="^chunk 103$"), lost.named([3]):
        raise ResourceExhausted("chunk 103")


def test_places_are_those_of_addresses() -> None:
    addresses = [_BASE, _BASE + 2 * _CHUNK_BYTES - 1, _BASE + 2 * _CHUNK_BYTES]
    assert list(lost_chunks([]).places_of(addresses)) == [0, 1, 2]
