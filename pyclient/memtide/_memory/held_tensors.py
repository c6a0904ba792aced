"""The tensors with memory of their own in which a module holds its bytes.

A parameter or a buffer is one itself, also if it is of a library's class. If its class only wraps
other tensors (of few bits, or a DTensor), these hold the bytes. Libraries keep what belongs to a
parameter of few bits, such as its scales, in attributes of the parameter or of the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from memtide._memory.tensor_parts import parts_of

_DEEPEST = 3  # An attribute of a quantization state of a quantization state of a parameter.
_MOST_INNER = 1000  # A longer list is data.
_OF_TORCH = frozenset(vars(nn.Module()))


def held_by(module: nn.Module) -> list[torch.Tensor]:
    """The parts of a module's own parameters and buffers."""
    parameters = module._parameters.values()
    if not module._buffers and all(type(p) is nn.Parameter or p is None for p in parameters):
        return [p for p in parameters if p is not None]
    held = [*parameters, *module._buffers.values()]
    return [part for tensor in held if tensor is not None for part in parts_of(tensor)]


def in_attributes_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own in attributes of a module, and in what its parameters of
    libraries' classes refer to. Objects that a module refers to are not followed: they may be a
    whole trainer, with its data."""
    for name, value in vars(module).items():
        if name not in _OF_TORCH:
            yield from _in(value, _DEEPEST, objects=False)
    for parameter in module._parameters.values():
        if parameter is not None and type(parameter) is not nn.Parameter:
            for value in vars(parameter).values():
                yield from _in(value, _DEEPEST, objects=True)


def _in(value: Any, depth: int, *, objects: bool) -> Iterator[torch.Tensor]:
    """Follows lists and dictionaries, and objects but modules and classes."""
    if isinstance(value, torch.Tensor):
        yield from parts_of(value)
        return
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif objects and not isinstance(value, nn.Module | type) and hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    if depth and len(inner) <= _MOST_INNER:
        for item in inner:
            yield from _in(item, depth - 1, objects=objects)
