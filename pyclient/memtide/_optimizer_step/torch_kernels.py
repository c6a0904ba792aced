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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memtide._capi.client import Access, Client, Places
from memtide._capi.optimizer_step import Format
from memtide._optimizer_step.partition import Batch, Geometry, Part
from memtide._optimizer_step.torch_options import TorchOptions
from memtide.errors import ResourceExhausted

# A multiple of what any of torch's CPU kernels computes in one turn of its loop.
_UNIT = 64
# Torch divides operations on this many elements or more between threads, for each of which there
# are as many (at::internal::GRAIN_SIZE, at::parallel_for).
_GRAIN = 32768
_TILE = _GRAIN - _UNIT
_TYPES = {
    Format.FLOAT32: torch.float32,
    Format.BFLOAT16: torch.bfloat16,
    Format.FLOAT16: torch.float16,
}


class _Scratch(threading.local):
    """Memory of a thread for the tensors of one tile."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[torch.dtype, ...], list[torch.Tensor]] = {}

    def tensors_of(self, types: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
        """A tensor of a tile's most elements for each type, the same at each call."""
        if types not in self._tensors:
            self._tensors[types] = [torch.empty(_TILE, dtype=kind) for kind in types]
        return self._tensors[types]


class TorchKernels:
    """Computes the batches of one client. Safe to use from any thread. REQUIRES: chunks are leased
    in host memory."""

    def __init__(self, client: Client, geometry: Geometry) -> None:
        self._client = client
        self._geometry = geometry
        self._leased = 0  # Batches.
        # Each batch makes two calls to lease its chunks, under this lock: two batches that have
        # made the first could wait for each other.
        self._released = threading.Condition()
        self._scratch = _Scratch()

    def make(
        self, batch: Batch, shadows: Mapping[int, int], *, count_non_finite: bool = False
    ) -> int:
        """Computes a batch into shadow chunks (`shadows`: by place). Returns how many elements of
        gradients are infinite or NaN, if they are counted; else 0."""
        reads = Places(batch.places)
        writes = Places(shadows[place] for place in batch.writes)
        with self.using(reads, writes):
            for start, end in batch.copies:
                ctypes.memmove(self._shadow(start, shadows), start, end - start)
            with torch.no_grad():
                return sum(self._step(part, shadows, count_non_finite) for part in batch.parts)

    @contextlib.contextmanager
    def using(self, reads: Places, writes: Places) -> Iterator[None]:
        """Leases chunks, if need be after other batches have ended. ResourceExhausted: without any,
        there is no room either."""
        count, most = reads.count + writes.count, self._client.stats().lease_budget
        if count > most:  # The second call would wait for what the first has leased, without end.
            raise ResourceExhausted(f"a step part needs {count} chunks at once, of at most {most}")
        with self._released:
            while not self._lease(reads, writes):
                self._released.wait()
            self._leased += 1
        try:
            yield
        finally:
            self._client.release(reads)
            self._client.release(writes)
            with self._released:
                self._leased -= 1
                self._released.notify()

    def _lease(self, reads: Places, writes: Places) -> bool:
        try:
            self._client.acquire(writes, Access.WRITE)
            try:
                self._client.acquire(reads, Access.READ)
            except BaseException:
                self._client.release(writes)
                raise
        except ResourceExhausted:
            if not self._leased:
                raise
            return False
        return True

    def _shadow(self, address: int, shadows: Mapping[int, int]) -> int:
        place = self._geometry.place(address)
        return address + (shadows[place] - place) * self._geometry.chunk_bytes

    def _step(self, part: Part, shadows: Mapping[int, int], count_non_finite: bool) -> int:
        options = part.options
        assert isinstance(options, TorchOptions)
        written = (options.parameter_format, *(options.state_format,) * (len(part.written) - 1))
        types = [_TYPES[each] for each in written]
        old = [_view(at, part.elements, t) for (at, _), t in zip(part.written, types, strict=True)]
        new = [
            _view(self._shadow(at, shadows), part.elements, kind)
            for (at, _), kind in zip(part.written, types, strict=True)
        ]
        gradient = _view(part.gradient, part.elements, _TYPES[options.gradient_format])
        non_finite = 0
        if count_non_finite:
            non_finite = part.elements - int(torch.isfinite(gradient).sum())
        scratch = self._scratch.tensors_of((gradient.dtype, *types))
        assert options.call is not None
        for tile in tiles_of(part, options.call.threads):
            gradient_tile, *tiles = [each[: tile.elements] for each in scratch]
            tile.fill(gradient_tile, gradient)
            for copied, source in zip(tiles, old, strict=True):
                tile.fill(copied, source)
            if options.gradient_factor != 1:
                gradient_tile.mul_(options.gradient_factor)
            for target, result in zip(new, _call(options, gradient_tile, tiles), strict=True):
                tile.take(target, result)
        return non_finite


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
    loops = min(threads, math.ceil(total / _GRAIN)) if total >= _GRAIN else 1
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


def _call(
    options: TorchOptions, gradient: torch.Tensor, written: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Steps a parameter and its states in place. Returns them, or what took a state's place."""
    call = options.call
    assert call is not None
    parameter, *states = written
    lists: dict[str, list[Any]] = {name: [] for name in call.absent_states}
    lists["params"], lists[call.gradients] = [parameter], [gradient]
    for name, state in zip(call.states, states, strict=True):
        lists[name] = [None if options.fresh_states else state]
    if call.steps is not None:
        # Fused functions want this type, whatever the script's default is.
        lists[call.steps] = [torch.tensor(options.step - 1, dtype=torch.float32)]
    call.function(**lists, **dict(options.numbers), **dict(call.flags))
    return [parameter, *(lists[name][0] for name in call.states)]


def _view(address: int, elements: int, kind: torch.dtype) -> torch.Tensor:
    """A tensor over elements in host memory, which it does not keep."""
    size_bytes = elements * kind.itemsize
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype=kind)
