"""Where the tensors of trained parameters lie in the arenas of gradients and optimizer states.

A step part uses the same elements of a parameter, its gradient and its states. Each of them lies in
one chunk, so fewest chunks are used where each arena has its tensors at the offsets of the others:
then a chunk of each arena belongs to a chunk of parameters (the chunk lists of PatrickStar, arXiv
2108.05818, section 6). Backward makes gradients in the opposite order, and an optimizer's parameter
groups make states in a third one, so the order of creation would not do.

Pure: addresses and sizes, no tensors and no client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memtide._memory.alignment import aligned

# Parameters of fewer chunks are not laid out behind others: the rest of a chunk before them would
# be lost in each arena.
_FEWEST_CHUNKS = 8


@dataclass(frozen=True)
class Run:
    """Consecutive chunks of each arena, for the parameters of one optimizer. Bytes of the layout,
    from the start of a chunk on."""

    start: int
    end: int


@dataclass(frozen=True)
class Position:
    """Where a tensor lies in its arena: `offset` bytes of the layout, in chunks of this run."""

    run: Run
    offset: int

    def __mul__(self, factor: int) -> Position:
        """The position in an arena whose tensors have `factor` times the bytes of parameters."""
        run = Run(self.run.start * factor, self.run.end * factor)
        return Position(run, self.offset * factor)


class ParallelLayout:
    """The positions of the tensors of trained parameters, as far as optimizers are known."""

    def __init__(self, chunk_bytes: int, alignment_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._alignment_bytes = alignment_bytes
        # By the address, in the client's range, and the bytes of a parameter.
        self._positions: dict[tuple[int, int], Position] = {}
        self.end = 0  # Bytes.

    def extend(self, parameters: Iterable[tuple[int, int]]) -> None:
        """Adds those parameters that are not laid out yet: (address, bytes), in any order, by
        addresses that are 0 at the start of a chunk."""
        new = sorted(set(parameters).difference(self._positions))
        sizes = [aligned(size, self._alignment_bytes) for _, size in new]
        least = _FEWEST_CHUNKS * self._chunk_bytes
        if not new or (self.end and sum(sizes) < least):
            return
        first = self.end // self._chunk_bytes * self._chunk_bytes
        offset, behind = self.end, None
        offsets = []
        for index, (address, _) in enumerate(new):
            # Behind parameters that are not trained, others begin as far into their chunk as in
            # the arena of parameters, if there are enough of them.
            if address != behind and _contiguous_bytes(new, sizes, index, least) >= least:
                offset += (address - offset) % self._chunk_bytes
            offsets.append(offset)
            offset += sizes[index]
            behind = address + sizes[index]
        run = Run(first, offset)
        self._positions.update(
            (parameter, Position(run, at)) for parameter, at in zip(new, offsets, strict=True)
        )
        self.end = offset

    def position_of(self, address: int, parameter_bytes: int, size_bytes: int) -> Position | None:
        """Where a tensor of `size_bytes` bytes lies that belongs to a parameter. None: anywhere."""
        position = self._positions.get((address, parameter_bytes))
        factor, rest = divmod(size_bytes, parameter_bytes)
        return position * factor if position is not None and factor and not rest else None


def _contiguous_bytes(
    parameters: list[tuple[int, int]], sizes: list[int], first: int, most: int
) -> int:
    """The bytes of the parameters from `first` on, up to the first gap, or at least `most`."""
    total, behind = 0, parameters[first][0]
    for index in range(first, len(parameters)):
        if parameters[index][0] != behind or total >= most:
            break
        total += sizes[index]
        behind += sizes[index]
    return total
