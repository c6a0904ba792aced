"""New tensors in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memtide._capi.client import Client, Home, Kind
from memtide._memory.arenas import Arenas
from memtide._memory.memory_pressure import MemoryPressure
from memtide.errors import ResourceExhausted


class TensorAllocator:
    """Uninitialized tensors in the arenas of one client, as far as a hold has room for them."""

    def __init__(self, client: Client, arenas: Arenas, pressure: MemoryPressure) -> None:
        self._arenas = arenas
        self._pressure = pressure
        properties = client.properties
        above_ssd = properties.device_slots and properties.host_slots and properties.ssd_slots
        # Activations lie in host memory, where there is something above it. Else only SSD frees the
        # memory that they need.
        self._home = Home.HOST if above_ssd else Home.LOWEST

    def like_storage_of(
        self, tensor: torch.Tensor, kind: Kind, row: int = 0, parameter: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """A tensor with the layout of `tensor`, over a span as large as its storage. `parameter`:
        the one to which a gradient or state belongs. None: a hold has no room."""
        position = self._arenas.position_of(kind, parameter, tensor.nbytes)
        target = self._arenas.of(kind, row).like_storage_of(tensor, position)
        return target if self._pressure.may_use_all() else None

    def state(self, like: torch.Tensor, row: int, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor for a parameter's state number `row`, with the layout of `like` (which may be on
        the meta device). It is in ordinary memory where a hold has no room."""
        target = self.like(like, Kind.OPTIMIZER_STATE, row, parameter)
        if target is not None:
            return target
        device = self._arenas.addresses.device
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)

    def like(
        self, like: torch.Tensor, kind: Kind, row: int, parameter: torch.Tensor
    ) -> torch.Tensor | None:
        """A tensor for a parameter's gradient or state, with the layout of `like`. None: a hold has
        no room."""
        position = self._arenas.position_of(kind, parameter, like.nbytes)
        target = self._arenas.of(kind, row).empty(like.size(), like.stride(), like.dtype, position)
        return target if self._pressure.may_use_all() else None

    def activation(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        home: Home | None = None,
        allow_ssd: bool = False,
    ) -> torch.Tensor:
        """A tensor in activation chunks with this home; None: that of activations. `allow_ssd`: in
        chunks that may leave for SSD, where host memory has no home for more. ResourceExhausted:
        there is no room."""
        home = self._home if home is None else home
        try:
            target = self._arenas.of_activations(home).empty(size, stride, dtype)
        except ResourceExhausted:
            if home is Home.LOWEST or not allow_ssd:
                raise
            target = self._arenas.of_activations(Home.LOWEST).empty(size, stride, dtype)
        if not self._pressure.may_use_all():
            raise ResourceExhausted("a hold has no room for another activation chunk")
        return target
