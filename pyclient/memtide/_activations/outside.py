"""Variables outside of modules that their forward passes may change: those that their code names.

A forward pass may count its calls in a global variable, append to a list that its closure has, or
draw from a generator of the script's own. Which ones it can reach is read from its byte code: the
globals and closures of its functions, and of the functions that these name. Torch's own functions
and Python's change nothing of the script's by themselves, so they are not looked into.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

_MOST_FUNCTIONS = 200  # The nearest: a library may have thousands.
_NOT_SCRIPTS = frozenset((*sys.stdlib_module_names, "torch", "numpy", "memtide")) - {"__main__"}
# The namespace, by its address, and the name in it.
Key = tuple[int, str]


def variables_of(modules: Sequence[nn.Module]) -> Iterator[tuple[Key, Any]]:
    """The variables outside that the code of these modules names, with their present values."""
    waiting = deque(_functions_of(modules))
    seen: set[types.FunctionType] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.popleft()
        if function in seen or _is_library_s(function.__module__):
            continue
        seen.add(function)
        for key, value in _named_by(function):
            value = value.__func__ if isinstance(value, types.MethodType) else value
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif not isinstance(value, type | types.ModuleType | nn.Module):
                yield key, value


def _functions_of(modules: Sequence[nn.Module]) -> Iterator[types.FunctionType]:
    """The methods of the modules' classes, and functions in attributes of theirs."""
    classes = dict.fromkeys(kind for module in modules for kind in type(module).__mro__)
    members = [member for kind in classes for member in vars(kind).values()]
    members += [value for module in modules for value in vars(module).values()]
    for member in members:
        member = getattr(member, "fget", getattr(member, "__func__", member))
        if isinstance(member, types.FunctionType):
            yield member


def _named_by(function: types.FunctionType) -> Iterator[tuple[Key, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield (id(cell), name), cell.cell_contents
        except ValueError:  # Nothing is in it yet.
            continue
    names = set(_names_in(function.__code__))
    spaces = [function.__globals__]
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType) and not _is_library_s(value.__name__):
            spaces.append(vars(value))
    for space in spaces:
        for name in names & space.keys():
            yield (id(space), name), space[name]


def _names_in(code: types.CodeType) -> Iterable[str]:
    """The names of globals and attributes in a function, and in those that are made in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names_in(constant)


def _is_library_s(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _NOT_SCRIPTS
