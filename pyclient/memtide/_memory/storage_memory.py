"""Whose memory a storage is over.

A storage that torch's allocator of the device has made is torch's alone: other users have the
storage, and are counted. But torch may have been handed its memory (by NumPy, a buffer, DLPack,
C++'s `from_blob`, a mapped file). Then other code may have the address, which cannot be seen.

A storage of torch's allocator can be resized, unless torch.load or Tensor.numpy() had it. Then only
the function that will free the memory tells it from others. Torch has no call that returns that
function, so it is read from the storage (c10::StorageImpl), which is compared with examples. With a
torch that lays storages out in another way, such a storage is taken for one of others.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch

_EXAMPLE_BYTES = 8
_ANY_FILE = "/proc/self/exe"


class _Head(NamedTuple):
    """The beginning of a storage, behind its vtable and its counts."""

    data: int
    deleter: int
    context: int  # The deleter's argument.


class _Deleters(NamedTuple):
    """The functions that free what torch's allocator has made, parts of storages, and files."""

    own: int
    part: int
    file: int


def is_torchs(storage: torch.UntypedStorage) -> bool:
    """Whether all that have the memory of a storage have the storage. A file that is mapped
    privately and then divided, as by torch.load(mmap=True) and safetensors, counts as such."""
    if storage.resizable():
        return True
    known = _deleters() if storage.device.type == "cpu" else None
    if known is None:
        return False
    head = _head_at(storage._cdata)
    if head.deleter != known.part:
        return head.deleter == known.own
    return _head_at(head.context).deleter == known.file and _is_private(head.data)


def _head_at(address: int) -> _Head:
    words = (ctypes.c_uint64 * 5).from_address(address)
    return _Head(*words[2:])


@functools.cache
def _deleters() -> _Deleters | None:
    """None: storages are not laid out as they are read here."""
    whole, other = (torch.UntypedStorage(_EXAMPLE_BYTES) for _ in range(2))
    part = whole[: _EXAMPLE_BYTES // 2]
    file = torch.UntypedStorage.from_file(_ANY_FILE, False, _EXAMPLE_BYTES)
    storages = [whole, other, part, file]
    heads = [_head_at(storage._cdata) for storage in storages]
    deleters = _Deleters(heads[0].deleter, heads[2].deleter, heads[3].deleter)
    is_known = (
        [head.data for head in heads] == [storage.data_ptr() for storage in storages]
        and heads[1].deleter == deleters.own
        and heads[2].context == whole._cdata
        and len(set(deleters)) == len(deleters)
    )
    return deleters if is_known else None


def _is_private(address: int) -> bool:
    """Whether what is written at an address of a mapped file stays in this process."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            span, access, *_ = line.split(maxsplit=2)
            start, end = (int(bound, 16) for bound in span.split("-"))
            if start <= address < end:
                return access.endswith("p")
    return False
