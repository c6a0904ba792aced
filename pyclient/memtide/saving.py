"""torch.save where the kernel may not fault chunks in.

Writing a file hands a tensor's memory to a system call. Where the client has no full userfaultfd,
a system call on a chunk that is not mapped fails with EFAULT; so each storage is copied to ordinary
memory for the moment of its writing. The bytes of the file are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memtide.adopt import Adopter


class _CopyingWriter:
    """A zip writer that copies managed storages before it writes them."""

    def __init__(self, writer: Any, adopter: Adopter) -> None:
        self._writer = writer
        self._adopter = adopter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size_bytes: int) -> None:
        if isinstance(data, torch.UntypedStorage) and self._adopter.in_range(data.data_ptr()):
            data = data.clone()
        self._writer.write_record(name, data, size_bytes)


def saving_through_copies(original: Callable[..., Any], adopter: Adopter) -> Callable[..., Any]:
    """torch.serialization._save with managed storages copied before they are written."""

    @functools.wraps(original)
    def _save(obj: Any, zip_file: Any, *args: Any, **kwargs: Any) -> Any:
        return original(obj, _CopyingWriter(zip_file, adopter), *args, **kwargs)

    return _save
