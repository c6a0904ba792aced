"""Computes step parts with torch's own functions, in this process, to the bits of a plain step.

An element of a plain step depends on its own gradient and states, and on whether torch's kernel
comes to it in whole vectors or in the scalar code for the last elements of a loop. A loop is over
what one thread has of a tensor. So a part is computed in copies, in tiles that begin at a multiple
of _UNIT elements of such a loop; where a part begins or ends elsewhere, zeros fill the tile up.

The tiles are small enough for a processor's cache, and for torch to use one thread: several parts
are computed at a time, by the threads of `StepCalls`, while the script's thread goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memtide._capi.client import Client
from memtide._capi.optimizer_step import Format
from memtide._optimizer_step.partition import Batch, Geometry, Interval, Part
from memtide._optimizer_step.torch_options import TorchOptions, argument_of
from memtide.errors import MemtideError

# A multiple of what any of torch's CPU kernels computes in one turn of its loop.
_UNIT = 64
# Torch divides operations on this many elements or more between threads, for each of which there
# are as many (at::internal::GRAIN_SIZE, at::parallel_for).
GRAIN = 32768
_TILE = GRAIN - _UNIT
_TYPES = {
    Format.FLOAT32: torch.float32,
    Format.BFLOAT16: torch.bfloat16,
    Format.FLOAT16: torch.float16,
}


class Scratch(threading.local):
    """Memory of a thread for the tensors of one tile."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[torch.dtype, ...], list[torch.Tensor]] = {}

    def tensors_of(self, types: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
        """A tensor of a tile's most elements for each type, the same at each call."""
        if types not in self._tensors:
            self._tensors[types] = [torch.empty(_TILE, dtype=kind) for kind in types]
        return self._tensors[types]


class TorchKernels:
    """Computes the batches of one client. Safe to use from any thread."""

    def __init__(self, client: Client, geometry: Geometry) -> None:
        self._client = client
        self._geometry = geometry
        self._scratch = Scratch()
        # Batches that do not fit would evict each other's chunks.
        self._by_turns = threading.Lock()

    def make(
        self, batch: Batch, shadows: Mapping[int, int], room: int, *, count_non_finite: bool = False
    ) -> int:
        """Computes a batch into shadow chunks (`shadows`: by place), with at most `room` chunks in
        host memory at a time. Returns how many elements of gradients are infinite or NaN, if they
        are counted; else 0."""
        reads = sorted(self._read(batch))
        writes = sorted(shadows[place] for place in batch.writes)
        if len(reads) + len(writes) > room:
            with self._by_turns:
                return self._make_by_turns(batch, shadows, room, count_non_finite)
        with self._lent(reads, writes, shadows) as memory, torch.no_grad():
            self._copy(batch.copies, memory)
            for part in batch.parts:
                self._step(part, memory)
                memory.count(part, count_non_finite)
        return memory.non_finite

    def _make_by_turns(
        self, batch: Batch, shadows: Mapping[int, int], room: int, count_non_finite: bool
    ) -> int:
        """As `make`, where not all chunks of a batch fit: its elements are copied to memory of this
        process, some chunks at a time, and its results from there."""
        steps = [(part, *_copies_of(part)) for part in batch.parts]
        unchanged = [
            (start, torch.empty(end - start, dtype=torch.uint8)) for start, end in batch.copies
        ]
        reads, writes = list(unchanged), list(unchanged)
        for part, gradient, old, new in steps:
            reads += [(part.gradient, gradient), *zip(_old_starts(part), old, strict=True)]
            writes += [(start, one) for (start, _), one in zip(part.written, new, strict=True)]
        for spans, places in self._groups(reads, room):
            with self._lent(places, [], shadows) as memory:
                for start, copy in spans:
                    copy.copy_(_view(memory.old(start), copy.numel(), copy.dtype))
        non_finite = 0
        with torch.no_grad():
            for part, gradient, old, new in steps:
                if count_non_finite:
                    non_finite += part.elements - int(torch.isfinite(gradient).sum())
                step_in_tiles(part, gradient, old, new, self._scratch)
        for number, (spans, places) in enumerate(self._groups(writes, room)):
            with self._lent([], [shadows[place] for place in places], shadows) as memory:
                memory.non_finite = 0 if number else non_finite
                for start, result in spans:
                    _view(memory.shadow(start), result.numel(), result.dtype).copy_(result)
        return non_finite

    def _groups(
        self, spans: Iterable[tuple[int, torch.Tensor]], room: int
    ) -> Iterator[tuple[list[tuple[int, torch.Tensor]], list[int]]]:
        """Divides spans, each of which lies in one chunk, into groups over at most `room` chunks,
        with the places of each group. No chunk is in two groups."""
        by_place: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for span in spans:
            by_place.setdefault(self._geometry.place(span[0]), []).append(span)
        places = sorted(by_place)
        for first in range(0, len(places), room):
            some = places[first : first + room]
            yield [span for place in some for span in by_place[place]], some

    @contextlib.contextmanager
    def _lent(
        self, reads: Sequence[int], writes: Sequence[int], shadows: Mapping[int, int]
    ) -> Iterator[_Memory]:
        """Has chunks in host memory. Unless the block raises, the written ones have new content."""
        number, addresses = self._client.start_part(reads, writes)
        memory = _Memory(
            self._geometry, dict(zip((*reads, *writes), addresses, strict=True)), shadows
        )
        try:
            yield memory
        except BaseException:
            # Fails only when the session is lost, and the part with it.
            with contextlib.suppress(MemtideError):
                self._client.end_part(number, computed=False)
            raise
        self._client.end_part(number, computed=True, non_finite=memory.non_finite)

    @staticmethod
    def _copy(intervals: Iterable[Interval], memory: _Memory) -> None:
        for start, end in intervals:
            ctypes.memmove(memory.shadow(start), memory.old(start), end - start)

    def _read(self, batch: Batch) -> set[int]:
        """The places whose content is read. States that begin with this step have none."""
        places = set(batch.reads) | {self._geometry.place(start) for start, _ in batch.copies}
        for part in batch.parts:
            places |= {self._geometry.place(start) for start in _old_starts(part)}
        return places

    def _step(self, part: Part, memory: _Memory) -> None:
        gradient_type, *types = _types_of_part(part)
        step_in_tiles(
            part,
            _view(memory.old(part.gradient), part.elements, gradient_type),
            [
                _view(memory.old(start), part.elements, kind)
                for start, kind in zip(_old_starts(part), types, strict=False)
            ],
            [
                _view(memory.shadow(start), part.elements, kind)
                for (start, _), kind in zip(part.written, types, strict=True)
            ],
            self._scratch,
        )


def step_in_tiles(
    part: Part,
    gradient: torch.Tensor,
    old: Sequence[torch.Tensor],
    new: Sequence[torch.Tensor],
    scratch: Scratch,
) -> None:
    """Computes a part. `old` and `new`: its elements of the parameter and the states, before and
    after. `old` has fewer where states begin with this step."""
    options = part.options
    assert isinstance(options, TorchOptions) and options.call is not None
    tensors = scratch.tensors_of((gradient.dtype, *(tensor.dtype for tensor in new)))
    for tile in tiles_of(part, options.call.threads):
        gradient_tile, *tiles = [tensor[: tile.elements] for tensor in tensors]
        tile.fill(gradient_tile, gradient)
        for copied, source in zip(tiles, old, strict=False):
            tile.fill(copied, source)
        if options.gradient_factor != 1:
            gradient_tile.mul_(options.gradient_factor)
        first_element = part.first_element + tile.first - tile.zeros_before
        results = step_once(options, gradient_tile, tiles, first_element)
        for target, result in zip(new, results, strict=True):
            tile.take(target, result)


@dataclass
class _Memory:
    """Where the chunks of a part are, by their places, and what was counted in them."""

    geometry: Geometry
    chunks: Mapping[int, int]
    shadows: Mapping[int, int]
    non_finite: int = 0

    def old(self, address: int) -> int:
        """Where the present content of an address is."""
        place = self.geometry.place(address)
        return self.chunks[place] + address - self.geometry.chunk(place)[0]

    def shadow(self, address: int) -> int:
        """Where the new content of an address is written."""
        place = self.geometry.place(address)
        return self.chunks[self.shadows[place]] + address - self.geometry.chunk(place)[0]

    def count(self, part: Part, wanted: bool) -> None:
        """Adds the elements of a part's gradient that are infinite or NaN, if that is wanted."""
        if wanted:
            gradient = _view(self.old(part.gradient), part.elements, _types_of_part(part)[0])
            self.non_finite += part.elements - int(torch.isfinite(gradient).sum())


@dataclass(frozen=True)
class _Tile:
    """Elements that one call computes: those of a part from `first` on, between zeros."""

    elements: int  # With the zeros.
    zeros_before: int
    first: int
    count: int

    def fill(self, tile: torch.Tensor, source: torch.Tensor) -> None:
        """Copies the tile's elements of a part."""
        end = self.zeros_before + self.count
        tile[: self.zeros_before].zero_()
        tile[end:].zero_()
        tile[self.zeros_before : end].copy_(source[self.first : self.first + self.count])

    def take(self, target: torch.Tensor, tile: torch.Tensor) -> None:
        """Copies the tile's elements to those of a part."""
        end = self.zeros_before + self.count
        target[self.first : self.first + self.count].copy_(tile[self.zeros_before : end])


def tiles_of(part: Part, threads: int) -> Iterator[_Tile]:
    """The tiles of a part, in order."""
    total = part.first + part.elements + part.left
    loops = min(threads, math.ceil(total / GRAIN)) if total >= GRAIN else 1
    loop_elements = math.ceil(total / loops)
    done = 0
    while done < part.elements:
        first = (part.first + done) % loop_elements
        zeros_before = first % _UNIT
        left_of_loop = min(loop_elements - first, total - part.first - done)
        count = min(part.elements - done, left_of_loop, _TILE - zeros_before)
        zeros_after = min(-(zeros_before + count) % _UNIT, left_of_loop - count)
        yield _Tile(zeros_before + count + zeros_after, zeros_before, done, count)
        done += count


def dtype_of(form: Format) -> torch.dtype:
    """The type of tensors in a format."""
    return _TYPES[form]


def types_of(options: TorchOptions, written: int) -> list[torch.dtype]:
    """The types of a parameter and its states: `written` tensors."""
    formats = [options.parameter_format]
    if options.rounded_format is not Format.NONE:  # Then the first state is its master.
        formats.insert(0, options.rounded_format)
    formats += [options.state_format] * (written - len(formats))
    return [dtype_of(each) for each in formats]


def step_once(
    options: TorchOptions,
    gradient: torch.Tensor,
    written: list[torch.Tensor],
    first_element: int = 0,
) -> list[torch.Tensor]:
    """One call of the function, which steps a parameter and its states in place. Returns them, or
    what took a state's place. `first_element`: the number of the parameter's first one in the
    optimizer."""
    call = options.call
    assert call is not None
    parameter, *states = written
    lists: dict[str, list[Any]] = {name: [] for name in call.absent_states}
    lists["params"], lists[call.gradients] = [parameter], [gradient]
    for name, state in zip(call.states, states, strict=True):
        lists[name] = [None if options.fresh_states else state]
    for name, number in zip(call.single_numbers, options.single_numbers, strict=True):
        lists[name] = [number.tensor()]
    if call.steps is not None:
        # Fused functions want this type, whatever the script's default is.
        lists[call.steps] = [torch.tensor(options.step - 1, dtype=torch.float32)]
    if call.has_first_elements:
        lists["first_elements"] = [first_element]
    numbers = {name: argument_of(number) for name, number in options.numbers}
    call.function(**lists, **numbers, **dict(call.flags))
    return [parameter, *(lists[name][0] for name in call.states)]


def _old_starts(part: Part) -> list[int]:
    """Where the tensors that a step reads begin, but for the gradient. States that begin with the
    step have no content yet; masters have."""
    starts = [start for start, _ in part.written]
    if not part.options.fresh_states:
        return starts
    return starts[: 2 if part.options.rounded_format is not Format.NONE else 1]


def _types_of_part(part: Part) -> list[torch.dtype]:
    """The types of the gradient, the parameter and the states."""
    options = part.options
    assert isinstance(options, TorchOptions)
    return [dtype_of(options.gradient_format), *types_of(options, len(part.written))]


def _copies_of(part: Part) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Memory for copies of a part: of its gradient, of what it reads and of what it writes, which
    are the same tensors as far as both have them."""
    gradient, *new = [torch.empty(part.elements, dtype=kind) for kind in _types_of_part(part)]
    return gradient, new[: len(_old_starts(part))], new


def _view(address: int, elements: int, kind: torch.dtype) -> torch.Tensor:
    """A tensor over elements in host memory, which it does not keep."""
    size_bytes = elements * kind.itemsize
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype=kind)
