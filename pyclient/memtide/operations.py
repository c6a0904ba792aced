"""What torch's operations do with their arguments, as their schemas say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from memtide.adopt import Adopter


@cache
def written_arguments(operation: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the arguments that an operation changes."""
    arguments = operation._schema.arguments
    written = [
        (position, argument.name)
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return frozenset(at for at, _ in written), frozenset(name for _, name in written)


def pieces_of(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]] | None:
    """An operation over lists of tensors as one call for each index; None: it is none.

    `_foreach_*` and `_fused_*` treat each index by itself, so the results are the same, and the
    chunks of one index fit where those of all do not.
    """
    name = operation._schema.name
    if not name.startswith(("aten::_foreach_", "aten::_fused_")):
        return None
    if len(operation._schema.returns) > 1:
        return None
    values = [*args, *kwargs.values()]
    lengths = {len(value) for value in values if isinstance(value, list | tuple) and value}
    if len(lengths) != 1 or any(isinstance(v, torch.Tensor) and v.ndim for v in values):
        return None

    def at(index: int, value: Any) -> Any:
        return [value[index]] if isinstance(value, list | tuple) and value else value

    return (
        (
            tuple(at(index, value) for value in args),
            {name: at(index, value) for name, value in kwargs.items()},
        )
        for index in range(lengths.pop())
    )


def touched_by(
    adopter: Adopter, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[set[int], set[int]]:
    """The places that an operation reads, and those that it writes."""
    written_positions, written_names = written_arguments(operation)
    reads: set[int] = set()
    writes: set[int] = set()
    for position, value in enumerate(args):
        _collect(adopter, value, writes if position in written_positions else reads)
    for name, value in kwargs.items():
        _collect(adopter, value, writes if name in written_names else reads)
    return reads, writes


def _collect(adopter: Adopter, value: Any, into: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        into.update(adopter.element_places(value))
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(adopter, item, into)


@cache
def only_views(operation: Any) -> bool:
    """Whether an operation looks at no element: its results are views of its arguments."""
    aliases = [result.alias_info for result in operation._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
