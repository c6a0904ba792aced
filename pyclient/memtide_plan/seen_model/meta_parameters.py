"""Parameters without memory: what a module's constructor makes is on torch's meta device.

Small tensors stay where the script makes them, so that a constructor can read numbers out of them.
Where an operation has tensors of both kinds, all become those of the meta device.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

_LEAST = 4096  # Elements of a tensor that goes to the meta device.
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})
_LIKE = frozenset({torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.pin_memory})
_META = torch.device("meta")
_DEEPEST = 60  # Frames between a constructor and what makes its tensor.


class MetaParameters(torch.overrides.TorchFunctionMode):
    """While it is entered, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            return _made(func, args, kwargs)
        if func in _LIKE:
            return _moved(func, args, kwargs)
        if func is torch.Tensor.__bool__ and args[0].is_meta:
            return True  # Models ask whether a mask masks nothing.
        if "device" in kwargs and not _is_here(kwargs["device"]):
            kwargs = {**kwargs, "device": None}
        if _mixes(args, kwargs):
            args, kwargs = as_meta(args), as_meta(kwargs)
        return func(*args, **kwargs)


def _made(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not _is_here(kwargs.get("device")):
        kwargs = {**kwargs, "device": None}
    if _in_constructor() and _elements(func, args, kwargs) >= _LEAST:
        kwargs = {**kwargs, "device": _META}
    return func(*args, **kwargs)


def _elements(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """How many elements a factory makes."""
    if kwargs.get("out") is not None:
        return 0
    return int(func(*args, **{**kwargs, "device": _META}).numel())


def _in_constructor() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module):
            return True
        frame = frame.f_back
    return False


def _is_here(device: Any) -> bool:
    """Whether a tensor can be on this device: the CPU, or the meta device."""
    return device is None or (
        not isinstance(device, int) and torch.device(device).type in ("cpu", "meta")
    )


def _moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Devices are left out; a type is converted to."""
    tensor, *rest = args
    if func is not torch.Tensor.to:
        return tensor
    values = [*rest, *kwargs.values()]
    types = [value for value in values if isinstance(value, torch.dtype)]
    types += [value.dtype for value in values if isinstance(value, torch.Tensor)]
    to_meta = any(str(value) == "meta" for value in values)
    device = _META if to_meta or tensor.is_meta else None
    return func(tensor, device=device, dtype=types[0] if types else None)


def _mixes(args: Any, kwargs: dict[str, Any]) -> bool:
    kinds = {tensor.is_meta for tensor in _tensors((*args, *kwargs.values())) if tensor.dim()}
    return len(kinds) > 1


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def as_meta(value: Any) -> Any:
    """The same, with each tensor on the meta device."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else torch.empty_like(value, device=_META)
    if isinstance(value, tuple | list):
        made = [as_meta(item) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {name: as_meta(item) for name, item in value.items()}
    if hasattr(value, "keys") and hasattr(value, "items"):  # Such as a tokenizer's batch.
        return {name: as_meta(item) for name, item in value.items()}
    return value


def move_to_meta(module: nn.Module) -> dict[int, nn.Parameter]:
    """All that is left elsewhere of a module's parameters and buffers. Shared ones stay shared.
    Returns what is in the place of each parameter that was moved, by its id."""
    moved: dict[int, nn.Parameter] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None and not parameter.is_meta:
                data = torch.empty_like(parameter.data, device=_META)
                made = nn.Parameter(data, requires_grad=parameter.requires_grad)
                each._parameters[name] = moved.setdefault(id(parameter), made)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = as_meta(buffer)
    return moved
