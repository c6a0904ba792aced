"""The bytes of storages, and ways to copy them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from memtide._capi.client import Places
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_layout import have_same_layout
from memtide._util.script_modes import without_modes_of_script

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


@without_modes_of_script()
def copy_bytes(
    memory: ManagedMemory,
    source: torch.Tensor,
    target: torch.Tensor,
    *,
    starts_threads: bool = True,
) -> None:
    """Copies the whole storage of `source` to that of `target`, chunk by chunk. Between host memory
    and host memory no thread is started for it if `starts_threads` is false.

    REQUIRES: both storages have one size, and one of them is in chunks.
    """
    addresses, ledger = memory.addresses, memory.ledger
    by_torch = starts_threads or not (source.is_cpu and target.is_cpu)
    copy: Copy = torch.Tensor.copy_ if by_torch else copy_without_torch
    writing = addresses.manages(target)
    places = addresses.span_places(target if writing else source)
    if len(places) == 1 and is_whole(source) and have_same_layout(source, [target]):
        with ledger.copying(Places(places), writing=writing, by_torch=by_torch):
            copy(target, source)
        return
    sources, targets = bytes_of(source), bytes_of(target)
    managed = targets if writing else sources
    start = 0
    while start < managed.numel():
        first = managed.data_ptr() + start
        next_chunk = addresses.chunk_bytes - (first - addresses.base) % addresses.chunk_bytes
        end = min(managed.numel(), start + next_chunk)
        part = Places(addresses.places_of(first, end - start))
        with ledger.copying(part, writing=writing, by_torch=by_torch):
            copy(targets[start:end], sources[start:end])
        start = end
