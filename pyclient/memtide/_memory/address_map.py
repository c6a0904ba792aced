"""Which places of a client's range lie under a tensor."""

from __future__ import annotations

import os
from typing import Any

import torch

from memtide._capi.client import Client
from memtide._memory.tensor_parts import (
    PLAIN_TYPES,
    has_own_memory,
    is_plain,
    local_part,
    tensors_in,
)
from memtide._util.devices import device_name

_NONE = range(0)


def address_of(tensor: torch.Tensor) -> int:
    """The address of the first element; 0: it is not a dense tensor with memory of its own."""
    if type(tensor) in PLAIN_TYPES:
        try:
            return tensor.data_ptr() if is_plain(tensor) else 0
        except RuntimeError:  # A function of torch.func has wrapped it, so that it has no storage.
            return 0
    if not has_own_memory(tensor):
        return 0
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data_ptr()


class AddressMap:
    """The range of one client: place i is at base + i * chunk_bytes, on `device`."""

    def __init__(self, client: Client) -> None:
        properties = client.properties
        self.base = properties.base
        self.end = properties.base + properties.places * properties.chunk_bytes
        self.chunk_bytes = properties.chunk_bytes
        self.device = torch.device(device_name(properties.dl_device))
        self._owner = os.getpid()

    @property
    def here(self) -> bool:
        """False in a forked child: the range is not inherited."""
        return os.getpid() == self._owner

    def manages(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are in a chunk."""
        return self.in_range(address_of(tensor))

    def managed_in(self, state: Any) -> list[torch.Tensor]:
        """The tensors of an optimizer state, at any depth, that are in chunks."""
        return [tensor for tensor in tensors_in(state) if self.manages(tensor)]

    def in_range(self, address: int) -> bool:
        """Whether an address is in the client's range."""
        return self.base <= address < self.end

    def places_of(self, address: int, size_bytes: int) -> range:
        """The places under `size_bytes` bytes from `address`. REQUIRES: within the range."""
        first = (address - self.base) // self.chunk_bytes
        return range(first, (address + size_bytes - 1 - self.base) // self.chunk_bytes + 1)

    def element_places(self, tensor: torch.Tensor) -> range:
        """The places under the elements of a tensor of any class; none: it is not managed."""
        if type(tensor) not in PLAIN_TYPES:  # This is called for each tensor of an operation.
            tensor = local_part(tensor)
        address = address_of(tensor)
        if not self.in_range(address) or not (elements := tensor.numel()):
            return _NONE
        if not tensor.is_contiguous():
            steps = zip(tensor.size(), tensor.stride(), strict=True)
            elements = sum((n - 1) * step for n, step in steps) + 1
        return self.places_of(address, elements * tensor.itemsize)

    def span_places(self, tensor: torch.Tensor) -> range:
        """The places of a managed tensor's whole storage."""
        storage = tensor.untyped_storage()
        return self.places_of(storage.data_ptr(), storage.nbytes())
