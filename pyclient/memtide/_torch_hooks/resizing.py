"""Torch's functions that resize a tensor's memory, with hooks added.

A storage over a chunk cannot be resized. The tensor over it leaves the chunk first, for ordinary
memory, and comes back in a later forward pass or step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from memtide._memory.adoption import USERS_OF_ONE_TENSOR, restore, storage_users
from memtide._memory.managed_memory import ManagedMemory
from memtide.errors import FailedPrecondition


def resizing_storages(
    memory: ManagedMemory, tensors: Callable[[], Iterable[torch.Tensor]], original: Any
) -> Any:
    """torch.UntypedStorage.resize_, by which scripts give the memory of weights back, and get it
    again. `tensors`: those that may be in chunks."""

    @functools.wraps(original)
    def resize_(storage: torch.UntypedStorage, size_bytes: int) -> None:
        addresses = memory.addresses
        # Storages on other devices may have no address: those that are traced are on "meta".
        is_near = addresses.here and storage.device == addresses.device
        if is_near and addresses.in_range(storage.data_ptr()):
            places = addresses.places_of(storage.data_ptr(), storage.nbytes())
            memory.copies.before_writing(set(places))
            tensor = _only_tensor_over(storage, tensors())
            restore(memory, tensor, with_bytes=size_bytes > 0)
            storage._set_cdata(tensor.untyped_storage()._cdata)
        original(storage, size_bytes)

    return resize_


def resizing_tensors(memory: ManagedMemory, original: Any) -> Any:
    """torch.Tensor.resize_ and resize_as_."""

    @functools.wraps(original)
    def resize(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if memory.addresses.here and memory.addresses.manages(tensor):
            memory.copies.before_writing(set(memory.addresses.span_places(tensor)))
            if storage_users(tensor.untyped_storage()) <= USERS_OF_ONE_TENSOR:
                restore(memory, tensor)
        resized: torch.Tensor = original(tensor, *args, **kwargs)
        return resized

    return resize


def _only_tensor_over(
    storage: torch.UntypedStorage, tensors: Iterable[torch.Tensor]
) -> torch.Tensor:
    """FailedPrecondition: there are others."""
    users = storage_users(storage)
    over = (t for t in tensors if t.untyped_storage()._cdata == storage._cdata)
    tensor = next(over, None)
    if tensor is None or users > USERS_OF_ONE_TENSOR:
        raise FailedPrecondition(
            f"memtide cannot resize a storage of {storage.nbytes()} bytes, as {users} tensors and "
            "storages are over it: views of a weight, or tensors that share it, would keep bytes "
            "that are no more. Drop them before storage.resize_()"
        )
    return tensor
