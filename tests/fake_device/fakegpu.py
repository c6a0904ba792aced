"""torch's device "fakegpu": a GPU of the fake CUDA (base/cuda/fake), and its module torch.fakegpu.

README.md in this folder says what it emulates. `import torch` calls `start`, as it does for every
backend that a package on the path announces (build.py makes the announcement).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from memtide._util import devices

_DEVICE_TYPE = "fakegpu"
_DL_EXTENSION = 12  # DLPack's number of torch's PrivateUse1.


def start() -> None:
    """Adds the device to torch, and to those that memtide manages as GPUs."""
    module = sys.modules[__name__]
    torch.ops.load_library(os.environ["FAKE_DEVICE_LIBRARY"])
    torch.utils.rename_privateuse1_backend(_DEVICE_TYPE)
    torch._register_device_module(_DEVICE_TYPE, module)
    devices.register(_DEVICE_TYPE, _DL_EXTENSION, module)
    # The module says what operations return on the meta device, where only Python says it.
    importlib.import_module("torch._meta_registrations")
    # Kernels run in a thread of their own, which must not outlive what they call.
    atexit.register(synchronize)
    atexit.register(_await_last_backward)


def _await_last_backward() -> None:
    """Waits until torch's thread for the device has let go of the last backward pass.

    The thread does so after `backward` has returned, and needs the interpreter for the context that
    was saved with the pass. If the interpreter has ended by then, the process aborts
    (pytorch/pytorch issue 38228), on a GPU, too. The device's thread runs another pass after it has
    let go of the one before. A pass from a new thread has no saved context, nor the modes that
    memtide gives to a threading.Thread. Python has this pass's tensors all the time, so that the
    device's thread need not end their objects."""
    nothing = torch.empty(0, device=_DEVICE_TYPE, requires_grad=True)
    _of_last_pass.extend((nothing, nothing.view(0), torch.empty(0, device=_DEVICE_TYPE)))
    has_ended = threading.Lock()
    has_ended.acquire()
    _thread.start_new_thread(_backward_of_nothing, (has_ended,))
    has_ended.acquire()


_of_last_pass: list[torch.Tensor] = []


def _backward_of_nothing(has_ended: threading.Lock) -> None:
    _, root, gradient = _of_last_pass
    run = torch.autograd.Variable._execution_engine.run_backward
    try:
        run((root,), (gradient,), False, False, (), True, True)
    finally:
        has_ended.release()


def is_available() -> bool:
    """Whether there is such a device."""
    return True


def device_count() -> int:
    """The fake CUDA may have more, but the backend uses one."""
    return 1


def current_device() -> int:
    """The number of the device that tensors without one are made on."""
    return 0


def set_device(_device: Any) -> None:
    """There is one."""


@contextlib.contextmanager
def device(_device: Any) -> Iterator[None]:
    """There is one."""
    yield


def synchronize(_device: Any = None) -> None:
    """Waits for all kernels."""
    torch.ops.fake_device.synchronize()


def empty_cache() -> None:
    """Returns the allocator's unused memory to the device, which waits for all kernels."""
    torch.ops.fake_device.empty_cache()


def mem_get_info(_device: Any = None) -> tuple[int, int]:
    """The device's free bytes, and all of its bytes."""
    free_bytes, total_bytes, *_ = torch.ops.fake_device.memory()
    return free_bytes, total_bytes


def set_per_process_memory_fraction(fraction: float, _device: Any = None) -> None:
    """Limits the allocator to this part of the device's memory. Bytes that it holds already
    stay."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _, total_bytes, *_ = torch.ops.fake_device.memory()
    torch.ops.fake_device.set_limit(int(fraction * total_bytes))


def memory_allocated(_device: Any = None) -> int:
    """Bytes of this process's tensors."""
    return int(torch.ops.fake_device.memory()[2])


def memory_reserved(_device: Any = None) -> int:
    """Bytes that the allocator holds."""
    return int(torch.ops.fake_device.memory()[3])


def memory_stats_as_nested_dict(_device: Any = None) -> dict[str, Any]:
    """The statistics that this allocator shares with torch's for CUDA."""
    _, _, allocated, reserved, peak, retries, shortages = torch.ops.fake_device.memory()
    return {
        "allocated_bytes": {"all": {"current": allocated, "peak": peak}},
        "reserved_bytes": {"all": {"current": reserved}},
        "num_alloc_retries": retries,
        "num_ooms": shortages,
    }


class _DefaultStream(NamedTuple):
    """The device's one stream, with the attributes of a torch.cuda.Stream."""

    stream_id: int = 0
    cuda_stream: int = 0


def current_stream(_device: Any = None) -> _DefaultStream:
    """There is one."""
    return _DefaultStream()


def cuda_calls(name: str) -> int:
    """How often this process has called a function of the fake CUDA."""
    return int(torch.ops.fake_device.calls(name))


def manual_seed_all(seed: int) -> None:
    """Seeds the generator of the device, for the kernels that are launched from now on."""
    # The bits of a negative number, as torch.manual_seed has it.
    torch.ops.fake_device.seed((seed + 2**63) % 2**64 - 2**63)


manual_seed = manual_seed_all


def get_rng_state(_device: Any = None) -> torch.Tensor:
    """The state of the device's generator, after all kernels."""
    state: torch.Tensor = torch.ops.fake_device.rng_state()
    return state


def set_rng_state(state: torch.Tensor, _device: Any = None) -> None:
    """Sets the state of the device's generator."""
    torch.ops.fake_device.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types in which torch.autocast may compute."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False
