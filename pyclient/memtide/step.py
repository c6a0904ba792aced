"""Leasing while an optimizer steps, and optimizer state that is born in chunks.

A `TorchDispatchMode` sees each operation of the step with its tensors. It leases their chunks
before the operation, and lets a new tensor that is made after the image of a managed one
(`zeros_like(p)`, `clone(grad)`) be made in a chunk, by the same operation on the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtide.adopt import SMALLEST_BYTES, Adopter, address_of
from memtide.leases import Route, Window
from memtide.observer import Observer

_aten = torch.ops.aten
_LIKE_OPERATIONS: dict[Any, Callable[..., torch.Tensor]] = {
    _aten.empty_like.default: lambda new, _source: new,
    _aten.zeros_like.default: lambda new, _source: new.zero_(),
    _aten.ones_like.default: lambda new, _source: new.fill_(1),
    _aten.full_like.default: lambda new, _source, value: new.fill_(value),
    _aten.clone.default: lambda new, source: new.copy_(source),
}


@cache
def _written_arguments(operation: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the arguments that an operation changes."""
    arguments = operation._schema.arguments
    written = [
        (position, argument.name)
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return frozenset(at for at, _ in written), frozenset(name for _, name in written)


def _pieces(
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


class StepMode(TorchDispatchMode):
    """Active while one optimizer steps."""

    def __init__(self, adopter: Adopter, route: Route, observer: Observer) -> None:
        super().__init__()
        self._adopter = adopter
        self._observer = observer
        self._window = Window(adopter.ledger, route)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LIKE_OPERATIONS and self._bears_state(args, kwargs):
            return self._bear(func, args, kwargs)
        if not self._adopter.ledger.active:
            return func(*args, **kwargs)
        pieces = _pieces(func, args, kwargs)
        if pieces is None:
            self._lease_for(func, args, kwargs)
            return func(*args, **kwargs)
        results: list[Any] = []
        for some_args, some_kwargs in pieces:
            self._lease_for(func, some_args, some_kwargs)
            result = func(*some_args, **some_kwargs)
            results += result if isinstance(result, list | tuple) else ()
        return results if func._schema.returns else None

    def close(self) -> None:
        """Gives the leases back."""
        self._window.close()

    def _bears_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        source = args[0]
        return (
            not torch.is_grad_enabled()  # Enabled: the closure's forward pass, not the update.
            and source.numel() * source.itemsize >= SMALLEST_BYTES
            and self._adopter.manages(source)
            and kwargs.get("device") in (None, torch.device("cpu"))
            and kwargs.get("layout") in (None, torch.strided)
            and not kwargs.get("pin_memory")
        )

    def _bear(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        source = args[0]
        shadow = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device="meta"
        )
        layout = {key: kwargs[key] for key in ("dtype", "memory_format") if key in kwargs}
        born = self._adopter.new_state(_aten.empty_like.default(shadow, **layout))
        if self._adopter.ledger.active:
            self._window.need(self._places(source), self._places(born))
        return _LIKE_OPERATIONS[func](born, *args)

    def _lease_for(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        written_positions, written_names = _written_arguments(func)
        reads: set[int] = set()
        writes: set[int] = set()
        for position, value in enumerate(args):
            self._collect(value, writes if position in written_positions else reads)
        for name, value in kwargs.items():
            self._collect(value, writes if name in written_names else reads)
        if (reads or writes) and self._window.need(reads, writes):
            self._observer.moment("step", func.name())

    def _collect(self, value: Any, into: set[int]) -> None:
        if isinstance(value, torch.Tensor):
            into.update(self._places(value))
        elif isinstance(value, list | tuple):
            for item in value:
                self._collect(item, into)

    def _places(self, tensor: torch.Tensor) -> set[int]:
        adopter = self._adopter
        address = address_of(tensor)
        if not adopter.in_range(address) or not tensor.numel():
            return set()
        last = sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
        return set(adopter.places_of(address, (last + 1) * tensor.itemsize))
