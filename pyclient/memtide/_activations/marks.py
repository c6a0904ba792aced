"""Marks: values that differ, with great probability, after an object has changed."""

from __future__ import annotations

import io
import random
import sys
import types
import zlib
from array import array
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import nn

_MOST_ITEMS = 1000
_MOST_BYTES = 64 * 2**20
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, deque)
# Attributes that torch itself keeps in a module, and the script's hooks, which are looked at
# elsewhere.
_TORCH_S = frozenset(vars(nn.Module()))


class Unseen(Exception):
    """An object changes by its use, and does not show how: an iterator, an open file."""

    def __init__(self) -> None:
        super().__init__("it uses an object that changes unseen, such as an iterator or a file")

    @staticmethod
    def check(value: Any) -> None:
        """Raises if `value` is such an object."""
        if isinstance(value, io.IOBase | array | memoryview) or hasattr(type(value), "__next__"):
            raise Unseen


def mark(value: Any, depth: int) -> Any:
    """Something that differs, with great probability, after the value has changed. Containers and
    attributes are looked into `depth` times. Unseen: nothing would."""
    if isinstance(value, _SCALARS):
        return repr(value)  # Also of NaN, which does not equal itself.
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, random.Random):
        return value.getstate()
    if (numpy := sys.modules.get("numpy")) is not None:
        if isinstance(value, numpy.random.Generator | numpy.random.BitGenerator):
            return repr(getattr(value, "bit_generator", value).state)
        if isinstance(value, numpy.random.RandomState):
            return repr(value.get_state())
        if isinstance(value, numpy.ndarray):
            return _mark_of_array(value)
    if isinstance(value, partial):
        return id(value), [mark(each, depth) for each in (value.func, value.args, value.keywords)]
    if isinstance(value, ContextVar):
        return mark(value.get(None), depth)
    if depth and isinstance(value, nn.Module):
        buffers = [(id(b), b._version) for b in value._buffers.values() if b is not None]
        attributes = {name: mark(each, depth - 1) for name, each in attributes_of(value).items()}
        return id(value), buffers, attributes
    Unseen.check(value)
    if depth and isinstance(value, _CONTAINERS):
        items = [mark(item, depth - 1) for item, _ in zip(value, range(_MOST_ITEMS), strict=False)]
        return id(value), len(value), items
    if depth and isinstance(value, dict | types.MappingProxyType):
        pairs = [pair for pair, _ in zip(value.items(), range(_MOST_ITEMS), strict=False)]
        return id(value), len(value), [(id(k), mark(v, depth - 1)) for k, v in pairs]
    if depth and hasattr(value, "__dict__") and not isinstance(value, type):
        return id(value), mark(vars(value), depth - 1)
    return id(value)


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are not torch's, of this moment."""
    return {name: value for name, value in vars(module).items() if name not in _TORCH_S}


def _mark_of_array(value: Any) -> Any:
    if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
        raise Unseen
    return id(value), zlib.crc32(value.tobytes())
