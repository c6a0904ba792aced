"""How a tensor's elements lie in memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def have_same_layout(first: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether all tensors have the same size and the same strides."""
    size, stride = first.size(), first.stride()
    return all(
        other.size() == size and (other.stride() == stride or layout_of(other) == layout_of(first))
        for other in others
    )


def layout_of(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    """The size, and the strides of the dimensions with more than one element."""
    return tensor.size(), tuple(
        step for n, step in zip(tensor.size(), tensor.stride(), strict=True) if n > 1
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill consecutive addresses, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for step, n in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if n > 1:
            if step != expected:
                return False
            expected *= n
    return True
