"""What torch's operations do with their arguments, as their schemas say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from memtide.adopt import Adopter

_LIST_PREFIXES = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


def is_higher_order(operation: Any) -> bool:
    """Whether it takes functions (`torch.cond`, flex attention), and has no schema."""
    return not hasattr(operation, "_schema")


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

    These treat each index by itself, so the results are the same, and the
    chunks of one index fit where those of all do not.
    """
    if is_higher_order(operation) or not operation._schema.name.startswith(_LIST_PREFIXES):
        return None
    if len(operation._schema.returns) > 1:
        return None
    values = [*args, *kwargs.values()]
    lengths = {len(value) for value in values if isinstance(value, list | tuple) and value}
    if len(lengths) != 1 or any(isinstance(v, torch.Tensor) and v.numel() > 1 for v in values):
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


def run_pieces(
    operation: Any,
    pieces: Iterator[tuple[tuple[Any, ...], dict[str, Any]]],
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> Any:
    """Runs the pieces of an operation in turn, and returns what the whole would have."""
    results: list[Any] = []
    for args, kwargs in pieces:
        result = run(args, kwargs)
        results += result if isinstance(result, list | tuple) else ()
    return results if operation._schema.returns else None


def touched_by(
    adopter: Adopter, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[set[int], set[int]]:
    """The places that an operation reads, and those that it writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    if is_higher_order(operation):  # Nothing says what it writes.
        for value in tree_leaves((args, kwargs)):
            _collect(adopter, value, writes)
        return reads, writes
    written_positions, written_names = written_arguments(operation)
    if kwargs.get("grad_scale") is None and operation._schema.name.startswith("aten::_fused_"):
        # Declared as written, as they are only where they are unscaled, too.
        written_positions -= {1}
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
    if is_higher_order(operation):
        return False
    aliases = [result.alias_info for result in operation._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def name_of(operation: Any) -> str:
    """For people."""
    return str(operation) if is_higher_order(operation) else str(operation.name())


def has_own_dispatch(types: Any) -> bool:
    """Whether one of an operation's tensors is of a class that does operations by itself."""
    return any(
        kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for kind in types
    )


def are_fake(types: Any) -> bool:
    """Whether one of an operation's tensors is fake: without memory, for torch to learn what the
    operation would return (as in a step of FSDP's parameters). Turned down, it is done by nobody.
    """
    return any(issubclass(kind, FakeTensor) for kind in types)
