"""Asks the torch at hand whether it gives the same bits in tiles as in one call.

torch_tiles.py relies on how torch divides a tensor between threads and at whole vectors, which
another version, or another processor, may do differently. So the first step of each kind computes
random tensors in both ways. The comparison takes some 10 to 60 ms, once a process.
"""

from __future__ import annotations

import torch

from memtide._optimizer_step.partition import Part
from memtide._optimizer_step.torch_options import TorchOptions
from memtide._optimizer_step.torch_tiles import (
    GRAIN,
    Scratch,
    step_in_tiles,
    step_once,
    types_of,
)

# Tensors that one thread of torch has whole, and that several have, each with odd cuts.
_LENGTHS = {331: (1, 67, 200), 3 * GRAIN + 77: (63, GRAIN + 5, 2 * GRAIN + 64)}


class SelfCheck:
    """Remembers what it has found for each kind of step."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], bool] = {}
        self._scratch = Scratch()

    def agrees(self, options: TorchOptions, tensors: int) -> bool:
        """Whether parts of steps with these options have the bits of whole ones. `tensors`: the
        number of those that a step changes, the parameter included."""
        formats = (options.gradient_format, options.parameter_format, options.state_format)
        key = (options.call, *formats, options.rounded_format, options.fresh_states, tensors)
        if key not in self._found:
            self._found[key] = all(
                self._agrees(options, tensors, elements, cuts)
                for elements, cuts in _LENGTHS.items()
            )
        return self._found[key]

    def _agrees(
        self, options: TorchOptions, tensors: int, elements: int, cuts: tuple[int, ...]
    ) -> bool:
        # The script's random numbers stay as they are.
        generator = torch.Generator().manual_seed(0)
        types = [options.gradient_format, *types_of(options, tensors)]
        gradient, parameter, *states = [
            torch.randn(elements, generator=generator, dtype=torch.float32).to(kind)
            for kind in types
        ]
        # Sums of squares are not negative.
        old = [parameter, *(state.abs_() for state in states)]
        new = [torch.empty_like(tensor) for tensor in old]
        with torch.no_grad():
            for first, end in zip((0, *cuts), (*cuts, elements), strict=True):
                span = slice(first, end)
                part = Part(
                    options,
                    end - first,
                    0,
                    (),
                    first_element=first,
                    first=first,
                    left=elements - end,
                )
                step_in_tiles(
                    part,
                    gradient[span],
                    [tensor[span] for tensor in old],
                    [tensor[span] for tensor in new],
                    self._scratch,
                )
            whole = step_once(options, gradient, old)
        return all(
            torch.equal(one.view(torch.uint8), other.view(torch.uint8))
            for one, other in zip(new, whole, strict=True)
        )
