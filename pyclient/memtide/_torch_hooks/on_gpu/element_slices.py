"""Element-wise operations over tensors that are larger than what can be leased at once.

The fused step of one embedding, over its parameter, gradient and two moments, may need more chunks
at once than the device pool has. An operation that writes each element from the same elements of
its operands gives the same bits slice by slice on a GPU, whose threads compute an element each. (On
a CPU, vectors and the elements after the last one may be rounded in other ways.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.op_schema import LIST_PREFIXES, is_higher_order, written_arguments

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def slices_of(
    memory: ManagedMemory, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Arguments] | None:
    """The arguments of one call for each run of elements between two chunk boundaries of any
    operand, which touches one chunk of each. None: the operation is not element-wise in its
    operands, there is no boundary or one within an element, or one chunk of each operand is more
    than may be leased.

    Lists have one index: `pieces_of` comes before. Tensors of one element are each slice's own.
    """
    values = (*args, *kwargs.values())
    if not _writes_each_element(operation) or any(_is_longer_list(value) for value in values):
        return None
    operands = [tensor for tensor in _tensors(values) if tensor.numel() > 1]
    if not operands or not _have_one_dense_layout(operands) or _overlap(operands):
        return None
    managed = [tensor for tensor in operands if memory.addresses.element_places(tensor)]
    # Nothing is written unless all can be.
    places = len({tensor.data_ptr() for tensor in managed})
    if places > memory.ledger.budget or any(t.data_ptr() % t.itemsize for t in managed):
        return None
    ends = {operands[0].numel()}
    for tensor in managed:
        ends.update(_boundaries(memory, tensor))
    if len(ends) == 1:
        return None

    def cut(start: int, end: int, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [cut(start, end, item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() == 1:
            # A tensor without dimensions stays one: it takes no part in the promotion of types.
            return value.reshape(1) if value.dim() > 1 else value
        return value.as_strided((end - start,), (1,), value.storage_offset() + start)

    return (
        (
            tuple(cut(start, end, value) for value in args),
            {name: cut(start, end, value) for name, value in kwargs.items()},
        )
        for start, end in pairwise((0, *sorted(ends)))
    )


def _writes_each_element(operation: Any) -> bool:
    """Whether an operation only writes in place, each element from the same elements."""
    if is_higher_order(operation):
        return False
    schema = operation._schema
    if any(result.alias_info is None for result in schema.returns):
        return False
    if schema.name.startswith(LIST_PREFIXES):
        return schema.name.endswith("_") and 0 in written_arguments(operation)[0]
    draws = torch.Tag.nondeterministic_seeded in operation.tags
    return torch.Tag.pointwise in operation.tags and schema.name.endswith("_") and not draws


def _is_longer_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 1


def _tensors(values: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for value in values:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _have_one_dense_layout(tensors: list[torch.Tensor]) -> bool:
    """Whether equal places of the tensors' memory are equal elements, without gaps."""
    first = tensors[0]
    return all(
        tensor.layout is torch.strided
        and tensor.size() == first.size()
        and tensor.stride() == first.stride()
        for tensor in tensors
    ) and torch.ops.aten.is_non_overlapping_and_dense(first)


def _overlap(tensors: list[torch.Tensor]) -> bool:
    """Whether two of the tensors share some of their elements, but not all."""
    spans = sorted({(t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t in tensors})
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def _boundaries(memory: ManagedMemory, tensor: torch.Tensor) -> range:
    """The elements, counted in memory, with which a tensor's second and later chunks begin."""
    first = -(tensor.data_ptr() - memory.addresses.base) % memory.addresses.chunk_bytes
    step = memory.addresses.chunk_bytes // tensor.itemsize
    return range(first // tensor.itemsize or step, tensor.numel(), step)
