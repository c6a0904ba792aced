"""Tensors in a message of bytes, one after the other, and counts of what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(kw_only=True)
class SentBytes:
    """Bytes that a process has sent in some steps, and those that it would have sent whole."""

    steps: int = 0
    bytes: int = 0
    whole_bytes: int = 0

    @property
    def part(self) -> float:
        """The share that was sent."""
        return self.bytes / self.whole_bytes if self.whole_bytes else 1.0


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of bytes."""
    return torch.cat([each.reshape(-1).view(torch.uint8) for each in tensors])


class Reader:
    """Takes the tensors of a message in their order."""

    def __init__(self, message: torch.Tensor) -> None:
        self._rest = message

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        # The bytes may begin where a tensor of this type must not.
        tensor = self._rest[:size].clone()
        self._rest = self._rest[size:]
        return tensor.view(dtype).view(tuple(shape))
