"""Says in an error which parameters are in a lost chunk: the daemon knows its number only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator

from memtide._util.listed import listed
from memtide.errors import DataLoss

# The names of the parameters with bytes in [start, end).
NamesIn = Callable[[int, int], list[str]]

_CHUNK = re.compile(r"\bchunk (\d+)\b")


def no_names(_start: int, _end: int) -> list[str]:
    return []


class LostChunks:
    """The names for the errors of one client's calls."""

    def __init__(
        self, id_at: Callable[[int], int], base: int, chunk_bytes: int, names_in: NamesIn
    ) -> None:
        """`id_at`: the id of the chunk at a place. Place i is at base + i * chunk_bytes."""
        self._id_at = id_at
        self._names_in = names_in
        self._base = base
        self._chunk_bytes = chunk_bytes

    @contextlib.contextmanager
    def named(self, places: Iterable[int]) -> Iterator[None]:
        """A DataLoss of a call over these places has the names of what is lost."""
        try:
            yield
        except DataLoss as error:
            raise DataLoss(f"{error}{self._names(str(error), places)}") from None

    def places_of(self, addresses: Iterable[int]) -> Iterator[int]:
        """The places of these addresses."""
        return ((address - self._base) // self._chunk_bytes for address in addresses)

    def _names(self, message: str, places: Iterable[int]) -> str:
        found = _CHUNK.search(message)
        if found is None:
            return ""
        lost = int(found.group(1))
        for place in places:
            if self._id_at(place) != lost:
                continue
            start = self._base + place * self._chunk_bytes
            names = self._names_in(start, start + self._chunk_bytes)
            if not names:
                return ""
            return f". In the chunk: {listed(names)}"
        return ""
