"""Version counters of tensors, kept without the memory of the tensors."""

from __future__ import annotations

import torch


def version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor that has the version counter of `tensor`, and keeps none of its memory."""
    return emptied(tensor.detach())


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without its memory. REQUIRES: it is a detached one, which no one else
    has."""
    # Unlike an operation in place, this keeps the version counter as it is.
    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return tensor
