"""The arguments of one call of a module, taken apart into tensors and the rest.

A block that is recomputed gets its arguments twice: in backward, its tensors are those that
autograd has saved, and its tuples, lists and dicts are made anew, as they were when the call began.
So what a forward pass appends to a list that it was given is appended once.

Which arguments are the same tensor stays true, too: torch's MultiheadAttention, for one, computes
otherwise if its query `is` its key.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Types of arguments that no forward pass can change.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, slice, range, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_LISTS = (tuple, list)
_DICTS = (dict, OrderedDict)


class ForeignArgument(Exception):
    """An argument that a forward pass may change, or that cannot be saved: its text says which."""


class CallArguments:
    """The arguments of a call. Owns nothing but its containers: the tensors are the caller's."""

    __slots__ = ("_args", "_kwargs", "tensors")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """ForeignArgument: there is something else than tensors, constants and containers."""
        self.tensors: list[torch.Tensor] = []
        numbers: dict[int, int] = {}
        self._args = [self._take(value, numbers) for value in args]
        self._kwargs = {name: self._take(value, numbers) for name, value in kwargs.items()}

    def given(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments anew, with these tensors in the places of those of the call."""
        args = [_give(value, tensors) for value in self._args]
        return args, {name: _give(value, tensors) for name, value in self._kwargs.items()}

    def without_tensors(self) -> CallArguments:
        """The same without what keeps tensors alive."""
        bare = CallArguments((), {})
        bare._args, bare._kwargs = self._args, self._kwargs
        return bare

    def _take(self, value: Any, numbers: dict[int, int]) -> Any:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise ForeignArgument(f"an argument is a {type(value).__name__}")
            if value.layout is not torch.strided or value.is_nested:
                raise ForeignArgument("an argument is a tensor that is not dense")
            number = numbers.setdefault(id(value), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(value)
            return _Place(number)
        kind = type(value)
        if kind in _LISTS:
            return kind([self._take(item, numbers) for item in value])
        if kind in _DICTS:
            return kind((key, self._take(item, numbers)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self._take(item, numbers) for item in value))
        if not isinstance(value, _CONSTANTS) and not isinstance(value, type):
            raise ForeignArgument(f"an argument is a {kind.__name__}, which it may change")
        return value


class _Place:
    """Stands for a tensor."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _give(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    kind = type(value)
    if kind is _Place:
        return tensors[value.number]
    if kind in _LISTS:
        return kind([_give(item, tensors) for item in value])
    if kind in _DICTS:
        return kind((key, _give(item, tensors)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_give(item, tensors) for item in value))
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value that a module takes or returns, in containers of any class."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
