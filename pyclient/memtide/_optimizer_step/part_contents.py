"""The work of a step part, in words that ranks can compare: the order of its chunks, digests of its
work, and which bytes it reads. No addresses of this process are in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from memtide._optimizer_step.partition import Batch, Geometry
from memtide._optimizer_step.torch_options import TorchOptions

_HALF = 8  # Bytes of a digest's half.


@dataclass
class PartContents:
    """One batch. Its chunks are in the order in which its parts use them, which ranks that train
    alike have in common."""

    reads: list[int] = field(default_factory=list)  # Places.
    writes: list[int] = field(default_factory=list)  # Places, not those of the shadow chunks.
    gradients: set[int] = field(default_factory=set)  # Places of gradients.
    # By place, the bytes that are read: where they begin in the chunk, and how many.
    pieces: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    work_digest: bytes = b""


def contents_of(batch: Batch, geometry: Geometry) -> PartContents:
    """Describes a batch."""
    contents = PartContents()
    elements, operation = hashlib.blake2b(digest_size=_HALF), hashlib.blake2b(digest_size=_HALF)

    def read(address: int, size_bytes: int) -> tuple[int, int]:
        place = geometry.place(address)
        offset = address - geometry.chunk(place)[0]
        if place not in contents.pieces:
            contents.pieces[place] = []
            contents.reads.append(place)
        contents.pieces[place].append((offset, size_bytes))
        return contents.reads.index(place), offset

    def write(address: int) -> tuple[int, int]:
        place = geometry.place(address)
        if place not in contents.writes:
            contents.writes.append(place)
        return contents.writes.index(place), address - geometry.chunk(place)[0]

    for part in batch.parts:
        options = part.options
        gradient_bytes = part.elements * options.gradient_format.itemsize
        contents.gradients.add(geometry.place(part.gradient))
        # Where a gradient lies changes nothing in the result.
        where: list[object] = [read(part.gradient, gradient_bytes)[0]]
        # Torch's loops and stochastic rounding depend on the numbers of elements around these.
        where += [part.first, part.elements, part.left, part.first_element]
        read_count = len(part.written)
        if options.fresh_states:
            read_count = 2 if options.rounded_format else 1
        for number, (start, end) in enumerate(part.written):
            where.append(write(start))
            if number < read_count:
                where.append(read(start, end - start))
        parameter = part.written[0][0]
        where.append(parameter - geometry.base)
        elements.update(repr(where).encode())
        operation.update(_operation(options).encode())
    for start, end in batch.copies:
        copied = (read(start, end - start), write(start), end - start, start - geometry.base)
        elements.update(repr(copied).encode())
    contents.work_digest = elements.digest() + operation.digest()
    return contents


def _operation(options: TorchOptions) -> str:
    call = options.call
    function = (call.function.__module__, call.function.__qualname__, call.states, call.flags)
    # How torch divides a tensor decides which elements are the last of a loop (torch_tiles.py).
    loops = (call.threads, call.modes, options.gradient_factor)
    formats = (options.parameter_format, options.gradient_format, options.state_format)
    rounded = (options.rounded_format, options.fresh_states)
    numbers = (options.step, options.numbers, options.single_numbers)
    return repr((function, loops, formats, rounded, numbers))
