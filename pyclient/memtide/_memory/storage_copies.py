"""The bytes of storages, and ways to copy them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

# Copies to its first tensor, which is dense and has the layout of the second.
Copy = Callable[[torch.Tensor, torch.Tensor], object]


def copy_without_torch(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies in this thread: torch starts others for a large copy. No mode of torch sees it.

    REQUIRES: as Copy, and both are in host memory.
    """
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements are all of its storage."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the tensor's storage."""
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))
