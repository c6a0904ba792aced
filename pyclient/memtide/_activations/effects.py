"""The effects of a forward pass beside returned tensors, as far as they can be seen.

To recompute a block is to run its forward pass again, which would repeat all of them. So a block
that has effects is not recomputed. They are seen by comparing what a forward pass could change with
what it was before: buffers, Python's and NumPy's random states, attributes of modules (counters,
lists), parameters and the inputs. Variables outside are compared by outside.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from memtide._activations.marks import Marks, Unseen, attributes_of
from memtide._activations.recompute import modules_in

# A larger buffer has only its version compared, not its content.
_MOST_BYTES = 1 << 20


class State:
    """The state that a block's forward pass could change, at one moment."""

    def __init__(self, block: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        """Takes it now."""
        modules = list(modules_in(block))
        self._inputs = [tensor._version for tensor in inputs]
        self._buffers = [_bits(b) for m in modules for b in m._buffers.values() if b is not None]
        self._parameters = [
            (id(p), p._version) for m in modules for p in m._parameters.values() if p is not None
        ]
        self._unseen: str | None = None
        marks = Marks()
        try:
            self._attributes = [
                {name: marks.of(value) for name, value in attributes_of(module).items()}
                for module in modules
            ]
        except Unseen as unseen:
            self._unseen = str(unseen)
        self._random = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = repr(numpy.random.get_state()) if hasattr(numpy, "random") else None

    def change_to(self, after: State) -> str | None:
        """The effect between two moments, in words; None: none is seen."""
        if self._inputs != after._inputs:
            return "it changes its input in place"
        if self._buffers != after._buffers:
            return "it changes buffers"
        if self._parameters != after._parameters:
            return "it changes parameters"
        if self._random != after._random:
            return "it draws from Python's random generator"
        if self._numpy != after._numpy:
            return "it draws from NumPy's random generator"
        if self._unseen is not None or after._unseen is not None:
            return self._unseen or after._unseen
        if self._attributes != after._attributes:
            return "it changes attributes of modules"
        return None


def reason_against(block: nn.Module) -> str | None:
    """Why a block is not to be recomputed, from what it is made of."""
    for module in modules_in(block):
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            return "it has batch normalization in training"
        if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            return "it has compiled modules"
        if isinstance(module, torch.jit.ScriptModule):
            return "it has scripted modules, which compute otherwise after their first runs"
    return None


def _bits(buffer: torch.Tensor) -> Any:
    """A buffer's identity, version and content: some kernels change one but not its version."""
    content = None
    if buffer.layout is torch.strided and buffer.nbytes <= _MOST_BYTES and not buffer.is_meta:
        flat = buffer.detach().contiguous().reshape(-1)
        content = flat.view(torch.uint8).cpu().numpy().tobytes()
    return id(buffer), buffer._version, content
