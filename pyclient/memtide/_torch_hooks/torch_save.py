"""torch.save if system calls cannot fault chunks in.

torch.save passes a tensor's memory to a system call. Without a userfaultfd that handles faults of
the kernel, a system call on a chunk that is not mapped fails with EFAULT. So each storage is copied
to ordinary memory while it is written. The bytes of the file are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memtide._memory.address_map import AddressMap


class _CopyingWriter:
    """A zip writer that copies managed storages before it writes them."""

    def __init__(self, writer: Any, addresses: AddressMap) -> None:
        self._writer = writer
        self._addresses = addresses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size_bytes: int) -> None:
        if isinstance(data, torch.UntypedStorage) and self._addresses.in_range(data.data_ptr()):
            data = data.clone()
        self._writer.write_record(name, data, size_bytes)


def saving_through_copies(
    addresses: AddressMap, original: Callable[..., Any]
) -> Callable[..., Any]:
    """torch.serialization._save with managed storages copied before they are written."""

    @functools.wraps(original)
    def _save(obj: Any, zip_file: Any, *args: Any, **kwargs: Any) -> Any:
        return original(obj, _CopyingWriter(zip_file, addresses), *args, **kwargs)

    return _save
