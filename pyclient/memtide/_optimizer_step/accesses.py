"""The bytes that a call of a functional optimizer reads and writes, and where two of them meet.

A script may give two parameters one state, or one count of steps, or a parameter as the gradient of
another one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from memtide._memory.address_map import address_of
from memtide._memory.tensor_parts import local_part
from memtide._optimizer_step.torch_functional import Arguments, FunctionalSignature

_MANY = 64  # As many are sorted with all others, and fewer inserted one by one.


class Access(NamedTuple):
    """Bytes [start, end) of one tensor."""

    start: int
    end: int
    owner: int  # The index of its parameter.
    writes: bool


def accesses(lists: Iterable[tuple[Sequence[Any], bool]]) -> list[Access]:
    """The accesses to all tensors in lists by parameter, which a call writes to or only reads."""
    return [
        Access(start, start + _extent_bytes(part), index, writes)
        for values, writes in lists
        for index, tensor in enumerate(values)
        if isinstance(tensor, torch.Tensor)
        and (start := address_of(part := local_part(tensor)))
        and part.numel()
    ]


def accesses_of(form: FunctionalSignature, arguments: Arguments) -> list[Access]:
    """The accesses of a call, by the indices of its parameters."""
    steps = () if form.steps is None else (form.steps,)
    written = ("params", *form.states, *form.single_numbers, *steps)
    lists = [(arguments[name], True) for name in written]
    return accesses([*lists, (arguments[form.gradients], False)])


def collisions(of: Iterable[Access]) -> Iterator[set[int]]:
    """The owners of accesses that have bytes in common to which one of them writes; a set of one
    owner, if all are its own."""
    merged: dict[tuple[int, int], tuple[set[int], bool, int]] = {}
    for access in of:
        owners, writes, count = merged.get(access[:2], (set(), False, 0))
        owners.add(access.owner)
        merged[access[:2]] = owners, writes or access.writes, count + 1
    active: list[tuple[int, set[int], bool]] = []
    for (start, end), (owners, writes, count) in sorted(merged.items()):
        if writes and count > 1:
            yield owners
        active = [other for other in active if other[0] > start]
        for _, others, other_writes in active:
            if writes or other_writes:
                yield owners | others
        active.append((end, owners, writes))


class UsedBytes:
    """The bytes that calls have used, to find those that a later call uses, too."""

    def __init__(self) -> None:
        self._new: list[Access] = []  # Not in these yet.
        self._all = _Ranges()
        self._written = _Ranges()

    def meet(self, of_call: Iterable[Access]) -> bool:
        """Whether one of the calls and this one use the same bytes, and one writes to them."""
        self._all.add([access[:2] for access in self._new])
        self._written.add([access[:2] for access in self._new if access.writes])
        self._new = []
        return any(
            (self._all if access.writes else self._written).meet(access.start, access.end)
            for access in of_call
        )

    def add(self, of_call: Iterable[Access]) -> None:
        """Adds those of a call."""
        self._new += of_call


class _Ranges:
    """Ranges of bytes, none of which meets another, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def meet(self, start: int, end: int) -> bool:
        at = bisect.bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < end

    def add(self, ranges: Sequence[tuple[int, int]]) -> None:
        if len(ranges) > _MANY:
            present = zip(self._starts, self._ends, strict=True)
            ranges, self._starts, self._ends = sorted([*present, *ranges]), [], []
        for start, end in ranges:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


def _extent_bytes(tensor: torch.Tensor) -> int:
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (sum((n - 1) * step for n, step in steps) + 1) * tensor.itemsize
