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
from itertools import islice
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


class Marks:
    """The marks of one moment."""

    def __init__(self, most_items: int = _MOST_ITEMS, *, contents: bool = True) -> None:
        """At most `most_items` of a container are looked at. `contents`: arrays, the states of
        generators, partial functions and buffers are, too, and modules one level deeper."""
        self._most_items = most_items
        self._contents = contents
        self._known: dict[tuple[int, int], Any] = {}

    def of(self, value: Any, depth: int = 2) -> Any:
        """Something that differs, with great probability, after the value has changed. Containers
        and attributes are looked into `depth` times. Unseen: nothing would."""
        if isinstance(value, _SCALARS):
            return repr(value)  # Also of NaN, which does not equal itself.
        if isinstance(value, torch.Tensor):
            return id(value), None if value.is_inference() else value._version
        if self._contents:
            if (content := _content_of(value)) is not None:
                return content
            if isinstance(value, partial):
                parts = (value.func, value.args, value.keywords)
                return id(value), [self.of(part, depth) for part in parts]
            if isinstance(value, ContextVar) and (held := value.get(None)) is not value:
                return self.of(held, depth)
            Unseen.check(value)
        if isinstance(value, type) or not depth:
            return id(value)
        key = (id(value), depth)
        if key not in self._known:
            self._known[key] = id(value)  # It may contain itself.
            self._known[key] = id(value), self._inside(value, depth - 1)
        return self._known[key]

    def _inside(self, value: Any, depth: int) -> Any:
        Unseen.check(value)
        if isinstance(value, _CONTAINERS):
            return len(value), [self.of(item, depth) for item in islice(value, self._most_items)]
        if isinstance(value, nn.Module):
            attributes = attributes_of(value)
            if not self._contents:
                return self._inside(attributes, depth - 1) if depth else None
            buffers = [(id(b), b._version) for b in value._buffers.values() if b is not None]
            return buffers, self._inside(attributes, depth)
        if isinstance(value, dict | types.MappingProxyType):
            items = list(islice(value.items(), self._most_items))
            return len(value), [(id(key), self.of(item, depth)) for key, item in items]
        return self.of(vars(value), depth) if hasattr(value, "__dict__") else None


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are not torch's, of this moment."""
    return {name: value for name, value in vars(module).items() if name not in _TORCH_S}


def _content_of(value: Any) -> Any:
    """The state of a generator, or the content of an array; None of others."""
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, random.Random):
        return value.getstate()
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    if isinstance(value, numpy.random.Generator | numpy.random.BitGenerator):
        return repr(getattr(value, "bit_generator", value).state)
    if isinstance(value, numpy.random.RandomState):
        return repr(value.get_state())
    if not isinstance(value, numpy.ndarray):
        return None
    if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
        raise Unseen
    return id(value), zlib.crc32(value.tobytes())
