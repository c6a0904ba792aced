"""Messages of the elements above a threshold."""

from __future__ import annotations

import math

import torch

from memtide_methods.exchange.messages import Reader, packed

# Room for a quarter more than the share, as a threshold of an earlier step lets more through.
_ROOM = 1.25


class Threshold:
    """The codec of one bucket."""

    def __init__(self, like: torch.Tensor, share: float, renew_every: int) -> None:
        elements = like.numel()
        self._dtype = like.dtype
        self._wanted = max(1, round(share * elements))
        self._room = min(elements, math.ceil(_ROOM * self._wanted))
        self._renew_every = renew_every
        self._steps = 0
        self._threshold = torch.zeros((), device=like.device)
        self._left = torch.zeros_like(like, dtype=torch.float32)  # For the next message.

    def encode(self, gradient: torch.Tensor) -> torch.Tensor:
        """Codec's."""
        left = self._left.add_(gradient)
        size = left.abs()
        if self._steps % self._renew_every == 0:
            self._threshold = size.topk(self._wanted).values[-1]
        self._steps += 1
        # A NaN is not below the threshold, so that all ranks get it.
        indices = (~(size < self._threshold)).nonzero().view(-1)
        if len(indices) > self._room:
            indices = indices[size[indices].topk(self._room).indices]
        values = left[indices].to(self._dtype)
        left[indices] -= values
        left.nan_to_num_(0, 0, 0)
        # Zeros for the first element fill the message.
        room = torch.zeros(self._room, dtype=torch.int32, device=indices.device)
        room[: len(indices)] = indices
        padded = values.new_zeros(self._room)
        padded[: len(indices)] = values
        return packed([room, padded])

    def add(self, message: torch.Tensor, total: torch.Tensor) -> None:
        """Codec's."""
        reader = Reader(message)
        indices = reader.take([self._room], torch.int32)
        total.index_add_(0, indices, reader.take([self._room], self._dtype).float())
