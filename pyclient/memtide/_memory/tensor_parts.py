"""The tensors that parameters, buffers and optimizer states are made of in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# The __torch_function__ of classes that leave torch's functions as they are.
_TORCHS_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch.nn.Parameter.__torch_function__,
)


# The older FullyShardedDataParallel looks after the memory of its parameters itself.
_OF_FSDP = "_is_flat_param"


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor of torch's own class."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_nested  # Its layout is called strided as well.
    )


def has_own_memory(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor whose bytes torch's functions read at its own address. A tensor
    of a library's class may be, or wrap others."""
    if type(tensor) in PLAIN_TYPES:
        return is_plain(tensor)
    # The class may answer for these attributes itself.
    with torch._C.DisableTorchFunctionSubclass():
        return (
            type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and not hasattr(tensor, _OF_FSDP)
        )


def computes_as_plain(tensor: torch.Tensor) -> bool:
    """Whether torch's functions do with it what they do with a dense tensor of torch's own
    class."""
    if type(tensor) in PLAIN_TYPES:
        return is_plain(tensor)
    own = type(tensor).__torch_function__
    return getattr(own, "__func__", own) in _TORCHS_FUNCTIONS and has_own_memory(tensor)


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors with memory of their own that a tensor consists of: itself, or what its
    class wraps."""
    if has_own_memory(tensor):
        return [tensor]
    if not is_traceable_wrapper_subclass(tensor):
        return []
    names, _ = tensor.__tensor_flatten__()
    inner = [getattr(tensor, name) for name in names]  # A DTensor's have a mesh of devices, too.
    return [part for each in inner if isinstance(each, torch.Tensor) for part in parts_of(each)]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a DTensor in this process; of any other tensor, the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether FSDP has given this process a part of a parameter, or of several."""
    return local_part(parameter) is not parameter or hasattr(parameter, _OF_FSDP)


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer state, at any depth; of those that wrap others, these."""
    if isinstance(state, torch.Tensor):
        yield from parts_of(state) or [state]
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)
