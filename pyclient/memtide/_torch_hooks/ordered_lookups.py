"""Lookups of rows in the order of the rows' places."""

from __future__ import annotations

from typing import Any

import torch

from memtide._util.script_modes import without_modes_of_script

_aten = torch.ops.aten
LOOKUPS = frozenset({_aten.embedding.default, _aten.index_select.default, _aten.index.Tensor})
_INTEGERS = frozenset({torch.int32, torch.int64})


@without_modes_of_script()
def look_up(func: Any, args: tuple[Any, ...]) -> Any:
    """The result of one of LOOKUPS, which reads each page of its table once, as far as the table is
    contiguous and the numbers of its rows are a tensor of integers."""
    numbers = _numbers_of_rows(func, args)
    if numbers is None:
        return func(*args)
    try:
        return _look_up(func, args, numbers)
    except IndexError:
        return func(*args)  # It names the first number that is wrong, in the script's order.


def _look_up(func: Any, args: tuple[Any, ...], numbers: torch.Tensor) -> torch.Tensor:
    order = numbers.reshape(-1).argsort()
    ascending = numbers.reshape(-1)[order]
    if func is _aten.index.Tensor:
        rows = func(args[0], [ascending])
    elif func is _aten.index_select.default:
        rows = func(args[0], 0, ascending)
    else:
        rows = func(args[0], ascending, *args[2:])
    found = torch.empty_like(rows)
    found[order] = rows
    return found.reshape(numbers.shape + rows.shape[1:])


def _numbers_of_rows(func: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
    numbers = args[-1] if func is not _aten.embedding.default else args[1]
    if isinstance(numbers, list) and len(numbers) == 1:
        [numbers] = numbers
    of_rows = func is not _aten.index_select.default or args[1] == 0
    if not of_rows or not isinstance(numbers, torch.Tensor) or numbers.dtype not in _INTEGERS:
        return None
    if func is _aten.index.Tensor and numbers.stride() != _strides_by_row(numbers.size()):
        return None  # The result's elements would lie in the order of the index's.
    return numbers if numbers.dim() > 0 and args[0].is_contiguous() else None


def _strides_by_row(size: torch.Size) -> tuple[int, ...]:
    strides = [1]
    for length in reversed(size[1:]):
        strides.insert(0, strides[0] * length)
    return tuple(strides)
