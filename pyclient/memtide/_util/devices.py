"""The devices whose memory memtide manages as a GPU's, and torch's module of each.

memtide works with CUDA GPUs. Nothing else in this package compares a device's type with "cuda" or
names `torch.cuda` (tools/tidy, rule `device-types`): it asks `gpu_module`. So whatever memtide does
on a GPU can also be done on another device that is registered here.

Nothing here imports torch: under `memtide run` the script does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

_CUDA = "cuda"
# DLPack's numbers of device types.
_DL_CPU = 1


class GpuModule(Protocol):
    """Functions that memtide calls in torch's module of a GPU's device type, such as torch.cuda."""

    def empty_cache(self) -> None: ...
    def synchronize(self, device: Any = None) -> None: ...
    def mem_get_info(self, device: Any = None) -> tuple[int, int]: ...
    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]: ...
    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None: ...
    def current_stream(self, device: Any = None) -> Any: ...
    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]: ...


# By device type in torch's notation, with its number in DLPack.
_registered: dict[str, tuple[int, GpuModule]] = {}


def gpu_module(device_type: str) -> GpuModule | None:
    """Torch's module of a device type, if memtide manages memory of such devices as a GPU's. None:
    it does not, or torch is not imported."""
    if device_type in _registered:
        return _registered[device_type][1]
    if device_type == _CUDA:
        module: GpuModule | None = getattr(sys.modules.get("torch"), _CUDA, None)
        return module
    return None


def current_stream(module: GpuModule, device: int) -> tuple[int, bool]:
    """The CUstream on which this thread's operations on a device run, and whether torch made it,
    so that it exists until the process ends. `device`: its number."""
    stream = module.current_stream(device)
    handle = int(stream.cuda_stream)
    # Torch numbers its own streams, and those of others have their handles as numbers.
    return handle, handle == 0 or int(stream.stream_id) != handle


def register(device_type: str, dl_type: int, module: GpuModule) -> Callable[[], None]:
    """Manages one more type of devices as GPUs. `dl_type` is its number in DLPack. Returns a
    function that ends this."""
    before = _registered.get(device_type)
    _registered[device_type] = dl_type, module

    def end() -> None:
        del _registered[device_type]
        if before is not None:
            _registered[device_type] = before

    return end


def type_name(dl_device: tuple[int, int]) -> str:
    """A device's type in torch's notation. `dl_device`: its type's number in DLPack, and its own
    number."""
    if dl_device[0] == _DL_CPU:
        return "cpu"
    names = (name for name, (dl_type, _) in _registered.items() if dl_type == dl_device[0])
    return next(names, _CUDA)


def device_name(dl_device: tuple[int, int]) -> str:
    """A device in torch's notation: "cpu", "cuda:0"."""
    name = type_name(dl_device)
    return name if dl_device[0] == _DL_CPU else f"{name}:{dl_device[1]}"
