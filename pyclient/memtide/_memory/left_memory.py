"""The ordinary memory that adopted tensors leave, or stay in."""

from __future__ import annotations

import sys

import torch

from memtide._util.devices import gpu_module

_CACHED_BYTES = 256 * 2**20


class LeftMemory:
    """Ordinary memory on the device of one client's chunks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left_bytes = 0  # Since torch's cache was emptied.
        self._has_said_so = False

    def leave(self, size_bytes: int) -> None:
        """Counts the ordinary memory that a parameter has left. Torch's allocator on a GPU caches
        it, and the pool may need it. Gradients and states are not counted: the next ones use the
        same memory again, and to empty the cache in every step costs much more than it gains."""
        self._left_bytes += size_bytes
        gpu = gpu_module(self._device.type)
        if gpu is not None and self._left_bytes >= _CACHED_BYTES:
            self._left_bytes = 0
            gpu.empty_cache()

    def stay(self, tensor: torch.Tensor) -> None:
        """Says of the first tensor that stays where it is, since others may have its memory, that
        such tensors do."""
        if not self._has_said_so:
            self._has_said_so = True
            print(
                f"memtide: a tensor of size {list(tensor.size())} stays where it is, as do others "
                "over memory that is not torch's (NumPy's, another library's, a mapped file's): "
                "its owner may use it, too",
                file=sys.stderr,
            )
