"""The tensors that parameters and optimizer states are made of in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a DTensor in this process; of any other tensor, the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether FSDP has given this process a part of a parameter, or of several."""
    return local_part(parameter) is not parameter or hasattr(parameter, "_is_flat_param")


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer state, at any depth; of a DTensor, the shard in this process."""
    if isinstance(state, torch.Tensor):
        yield local_part(state)
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)
