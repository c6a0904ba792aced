"""The effects of a forward pass beside returned tensors, as far as they can be seen.

To recompute a block is to run its forward pass again, which would repeat all of them. So a block
that has effects is not recomputed. They are seen by comparing what a forward pass could change with
what it was before: buffers, Python's and NumPy's random states, attributes of modules (counters,
lists), parameters, the inputs, and variables outside that its code names (outside.py).
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from memtide._activations.outside import variables_of
from memtide._activations.recompute import modules_in

_MOST_ITEMS = 1000
# A larger buffer has only its version compared, not its content.
_MOST_BYTES = 1 << 20
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, deque)
# Attributes that torch itself keeps in a module, and the script's hooks, which are looked at
# elsewhere.
_TORCH_S = frozenset(vars(nn.Module()))


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
        self._attributes = [
            {k: _mark(v, 2) for k, v in vars(m).items() if k not in _TORCH_S} for m in modules
        ]
        self._variables = {key: _mark(v, 2) for key, v in variables_of(modules)}
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
        if self._attributes != after._attributes:
            return "it changes attributes of modules"
        if self._variables != after._variables:
            return "it changes variables outside of its modules"
        return None


def reason_against(block: nn.Module) -> str | None:
    """Why a block is not to be recomputed, from what it is made of."""
    for module in modules_in(block):
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            return "it has batch normalization in training"
        if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            return "it has compiled modules"
    return None


def _bits(buffer: torch.Tensor) -> Any:
    """A buffer's identity, version and content: some kernels change one but not its version."""
    content = None
    if buffer.layout is torch.strided and buffer.nbytes <= _MOST_BYTES and not buffer.is_meta:
        flat = buffer.detach().contiguous().reshape(-1)
        content = flat.view(torch.uint8).cpu().numpy().tobytes()
    return id(buffer), buffer._version, content


def _mark(value: Any, depth: int) -> Any:
    """Something that differs, with great probability, after the value has changed."""
    if isinstance(value, _SCALARS):
        return repr(value)  # Also of NaN, which does not equal itself.
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, random.Random):
        return value.getstate()
    if hasattr(value, "bit_generator"):  # One of NumPy's.
        return repr(value.bit_generator.state)
    if depth and isinstance(value, _CONTAINERS):
        items = [_mark(item, depth - 1) for item, _ in zip(value, range(_MOST_ITEMS), strict=False)]
        return id(value), len(value), items
    if depth and isinstance(value, dict):
        pairs = [pair for pair, _ in zip(value.items(), range(_MOST_ITEMS), strict=False)]
        return id(value), len(value), [(id(k), _mark(v, depth - 1)) for k, v in pairs]
    if depth and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module):
        return id(value), _mark(vars(value), depth - 1)
    return id(value)
