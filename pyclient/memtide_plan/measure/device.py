"""The device: products of matrices, its memory, and the link between it and the host.

A machine without a GPU has an emulated device: torch computes on the processor, and one thread
copies between the pools, as the daemon's does.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from memtide._telemetry.process_memory import available_host_bytes
from memtide._util.devices import gpu_module

from memtide_plan.measure.repeated import Rate, rate_of

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SMALLEST_MATRIX, _LARGEST_MATRIX = 256, 8192
# A product is large enough when it takes as long: its launch takes a thousandth of that.
_LONG_ENOUGH_S = 0.01
_COPIED_BYTES = 128 * 2**20
_EMULATED = "emulated device"


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """Torch's device. `kind` is its type in torch's notation."""

    kind: str
    name: str
    memory_bytes: int

    @property
    def is_emulated(self) -> bool:
        """Whether it is host memory."""
        return self.kind == "cpu"


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bytes a second to the device, from it, and both together."""

    to_device: Rate
    from_device: Rate
    both_ways: Rate


def find() -> MeasuredDevice:
    """The first GPU that torch has; without one, an emulated device with half of the host memory
    that is available."""
    # Torch before 2.6 does not say which accelerator it has.
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
        module = gpu_module(kind)
        if module is not None:
            name = torch.get_device_module(kind).get_device_name(0)
            return MeasuredDevice(kind=kind, name=name, memory_bytes=module.mem_get_info(0)[1])
    half = available_host_bytes() // 2 // 2**20 * 2**20
    return MeasuredDevice(kind="cpu", name=_EMULATED, memory_bytes=half)


def product_rates(device: MeasuredDevice, seconds: float) -> dict[str, Rate]:
    """Floating-point operations a second of products of square matrices, by type."""
    return {
        name: _product_rate(device, dtype, seconds / len(_TYPES)) for name, dtype in _TYPES.items()
    }


def memory_rate(device: MeasuredDevice, seconds: float) -> Rate:
    """Bytes that a copy within the device's memory reads and writes in a second."""
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device.kind)
    target = torch.empty_like(source)
    wait = _waiting(device)

    def copy() -> float:
        target.copy_(source)
        wait()
        return 2.0 * _COPIED_BYTES

    return rate_of(copy, seconds)


def link_rates(device: MeasuredDevice, seconds: float) -> Link:
    """The link, one direction at a time and both at once."""
    copies = _emulated_copies() if device.is_emulated else _gpu_copies(device)
    to_device, from_device, both = copies
    return Link(
        to_device=rate_of(to_device, seconds / 3),
        from_device=rate_of(from_device, seconds / 3),
        both_ways=rate_of(both, seconds / 3),
    )


def _product_rate(device: MeasuredDevice, dtype: torch.dtype, seconds: float) -> Rate:
    wait = _waiting(device)
    size = _SMALLEST_MATRIX
    while True:
        left = torch.randn(size, size, device=device.kind).to(dtype)
        multiply = _multiplication(left, wait)
        multiply()
        began_s = time.perf_counter()
        operations = multiply()
        if time.perf_counter() - began_s >= _LONG_ENOUGH_S or size >= _LARGEST_MATRIX:
            break
        size *= 2
    assert operations
    return rate_of(multiply, seconds)


def _multiplication(matrix: torch.Tensor, wait: Callable[[], None]) -> Callable[[], float]:
    result = torch.empty_like(matrix)

    def multiply() -> float:
        torch.mm(matrix, matrix, out=result)
        wait()
        return 2.0 * matrix.shape[0] ** 3

    return multiply


def _waiting(device: MeasuredDevice) -> Callable[[], None]:
    module = gpu_module(device.kind)
    return (lambda: None) if module is None or device.is_emulated else module.synchronize


_Copy = Callable[[], float]


def _emulated_copies() -> tuple[_Copy, _Copy, _Copy]:
    """One thread for each direction."""
    buffers = [torch.ones(_COPIED_BYTES, dtype=torch.uint8) for _ in range(4)]
    first, second, third, fourth = (buffer.data_ptr() for buffer in buffers)

    def copy(target: int, source: int) -> float:
        assert buffers
        ctypes.memmove(target, source, _COPIED_BYTES)
        return float(_COPIED_BYTES)

    def both() -> float:
        other = threading.Thread(target=copy, args=(fourth, third))
        other.start()
        copy(second, first)
        other.join()
        return 2.0 * _COPIED_BYTES

    return lambda: copy(second, first), lambda: copy(first, second), both


def _gpu_copies(device: MeasuredDevice) -> tuple[_Copy, _Copy, _Copy]:
    """Pinned memory and a stream for each direction."""
    hosts = [torch.ones(_COPIED_BYTES, dtype=torch.uint8).pin_memory() for _ in range(2)]
    on_device = [torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device.kind) for _ in range(2)]
    streams = [torch.Stream(device=device.kind) for _ in range(2)]
    wait = _waiting(device)

    def start_to() -> None:
        with torch.get_device_module(device.kind).stream(streams[0]):
            on_device[0].copy_(hosts[0], non_blocking=True)

    def start_from() -> None:
        with torch.get_device_module(device.kind).stream(streams[1]):
            hosts[1].copy_(on_device[1], non_blocking=True)

    def both() -> float:
        start_to()
        return _COPIED_BYTES + ended(start_from)

    def ended(start: Callable[[], None]) -> float:
        start()
        wait()
        return float(_COPIED_BYTES)

    return lambda: ended(start_to), lambda: ended(start_from), both
