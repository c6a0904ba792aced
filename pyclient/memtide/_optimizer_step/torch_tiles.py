"""Computes elements with torch's own functions, in tiles, to the bits of a plain step, or freely.

An element of a plain step depends on its own gradient and states, and on whether torch's kernel
comes to it in whole vectors or in the scalar code for the last elements of a loop. A loop is over
what one thread has of a tensor. So a part is computed in tiles that begin at a multiple of _UNIT
elements of such a loop; where a part begins or ends elsewhere, zeros fill a copy of the tile up. A
tile is small enough for a processor's cache, and for torch to use one thread.

Beside a GPU a plain step has other bits anyway. Then tiles are large, torch divides them between
its threads, and Adam is fused: the same elements take a third of the time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memtide._optimizer_step import float_modes
from memtide._optimizer_step.partition import Part
from memtide._optimizer_step.torch_options import TorchOptions, argument_of

# A multiple of what any of torch's CPU kernels computes in one turn of its loop.
_UNIT = 64
# Torch divides operations on this many elements or more between threads, for each of which there
# are as many (at::internal::GRAIN_SIZE, at::parallel_for).
GRAIN = 32768
_TILE = GRAIN - _UNIT
_FREE_TILE = 16 * GRAIN


class Scratch(threading.local):
    """Memory of a thread for the tensors of one tile."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[torch.dtype, ...], list[torch.Tensor]] = {}

    def tensors_of(self, types: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
        """A tensor of a tile's most elements for each type, the same at each call."""
        if types not in self._tensors:
            self._tensors[types] = [torch.empty(_TILE, dtype=kind, device="cpu") for kind in types]
        return self._tensors[types]


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
    tensors = scratch.tensors_of((gradient.dtype, *(tensor.dtype for tensor in new)))
    with float_modes.set_to(options.call.modes):
        for tile in tiles_of(part, options.call.threads):
            gradient_tile, *stepped = [tensor[: tile.elements] for tensor in tensors]
            tile.fill(gradient_tile, gradient)
            if tile.elements == tile.count:  # Without zeros it is computed where it belongs.
                stepped = [tile.of(tensor) for tensor in new]
            for copied, source in zip(stepped, old, strict=False):
                tile.fill(copied, source)
            if options.gradient_factor != 1:
                gradient_tile.mul_(options.gradient_factor)
            first_element = part.first_element + tile.first - tile.zeros_before
            results = step_once(options, gradient_tile, stepped, first_element)
            for target, place, result in zip(new, stepped, results, strict=True):
                if result is not place or tile.elements != tile.count:
                    tile.take(target, result)


def step_freely(
    part: Part, gradient: torch.Tensor, old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]
) -> None:
    """Computes a part, as step_in_tiles(), where its bits may be others. Torch's threads belong to
    the calling one, so that one thread should make all such calls."""
    options = part.options
    for first in range(0, part.elements, _FREE_TILE):
        tile = slice(first, min(first + _FREE_TILE, part.elements))
        own_gradient = gradient[tile].clone()
        if options.gradient_factor != 1:
            own_gradient.mul_(options.gradient_factor)
        stepped = [tensor[tile] for tensor in new]
        for copied, source in zip(stepped, old, strict=False):
            copied.copy_(source[tile])
        results = step_once(
            options, own_gradient, stepped, part.first_element + first, may_fuse=True
        )
        for place, result in zip(stepped, results, strict=True):
            if result is not place:
                place.copy_(result)


@dataclass(frozen=True)
class _Tile:
    """Elements that one call computes: those of a part from `first` on, between zeros."""

    elements: int  # With the zeros.
    zeros_before: int
    first: int
    count: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tile's elements of those of a part."""
        return tensor[self.first : self.first + self.count]

    def fill(self, tile: torch.Tensor, source: torch.Tensor) -> None:
        """Copies the tile's elements of a part."""
        if self.elements == self.count:
            tile.copy_(self.of(source))
            return
        end = self.zeros_before + self.count
        tile[: self.zeros_before].zero_()
        tile[end:].zero_()
        tile[self.zeros_before : end].copy_(self.of(source))

    def take(self, target: torch.Tensor, tile: torch.Tensor) -> None:
        """Copies the tile's elements to those of a part."""
        self.of(target).copy_(tile[self.zeros_before : self.zeros_before + self.count])


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


def types_of(options: TorchOptions, written: int) -> list[torch.dtype]:
    """The types of a parameter and its states: `written` tensors."""
    formats = [options.parameter_format]
    if options.rounded_format is not None:  # Then the first state is its master.
        formats.insert(0, options.rounded_format)
    return formats + [options.state_format] * (written - len(formats))


def step_once(
    options: TorchOptions,
    gradient: torch.Tensor,
    written: list[torch.Tensor],
    first_element: int = 0,
    *,
    may_fuse: bool = False,
) -> list[torch.Tensor]:
    """One call of the function, which steps a parameter and its states in place. Returns them, or
    what took a state's place. `first_element`: the number of the parameter's first one in the
    optimizer. `may_fuse`: Adam may be fused, although the script's call is not."""
    call = options.call
    flags = dict(call.flags)
    is_adam = "exp_avg_sqs" in call.states and "fused" in flags
    if may_fuse and is_adam and len({gradient.dtype, *(t.dtype for t in written)}) == 1:
        flags |= {"fused": True, "foreach": False}
    parameter, *states = written
    lists: dict[str, list[Any]] = {name: [] for name in call.absent_states}
    lists["params"], lists[call.gradients] = [parameter], [gradient]
    for name, state in zip(call.states, states, strict=True):
        lists[name] = [None if options.fresh_states else state]
    for name, number in zip(call.single_numbers, options.single_numbers, strict=True):
        lists[name] = [number.tensor()]
    if call.steps is not None:
        # Fused functions want this type, whatever the script's default is.
        lists[call.steps] = [torch.tensor(options.step - 1, dtype=torch.float32, device="cpu")]
    if call.has_first_elements:
        lists["first_elements"] = [first_element]
    numbers = {name: argument_of(number) for name, number in options.numbers}
    call.function(**lists, **numbers, **flags)
    return [parameter, *(lists[name][0] for name in call.states)]
