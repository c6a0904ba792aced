"""Modes of torch that the script has entered, under which operations may give anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from memtide._util.origin import is_memtide_s

_pop = torch._C._pop_torch_dispatch_stack
_push = torch._C._push_on_torch_dispatch_stack


def in_mode_of_script() -> bool:
    """Whether the calling thread is within a `TorchFunctionMode` or `TorchDispatchMode` that is
    neither memtide's nor a default device."""
    return _in_function_mode() or not all(map(is_memtide_s, map(type, _dispatch_modes())))


@contextlib.contextmanager
def without_modes_of_script() -> Iterator[None]:
    """In the block, no mode of the script sees the operations of this thread: they are memtide's
    own, and would be rounded or counted, or draw random numbers."""
    if not in_mode_of_script():
        yield
        return
    modes = _dispatch_modes()
    of_memtide = [mode for mode in modes if is_memtide_s(type(mode))]
    with contextlib.ExitStack() as stack:
        if _in_function_mode():
            stack.enter_context(torch._C.DisableTorchFunction())
        if len(of_memtide) < len(modes):
            stack.enter_context(_only(of_memtide, len(modes)))
        yield


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """As `without_modes_of_script`, and memtide's own do not see the operations either. REQUIRES:
    what they use is leased."""
    with torch._C.DisableTorchFunction(), _only([], len(_dispatch_modes())):
        yield


@contextlib.contextmanager
def _only(modes: list[TorchDispatchMode], depth: int) -> Iterator[None]:
    entered = [_pop(None) for _ in range(depth)]
    for mode in modes:
        _push(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop(None)
        for mode in reversed(entered):
            _push(mode)


def _in_function_mode() -> bool:
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def _dispatch_modes() -> list[TorchDispatchMode]:
    """The lowest first, without torch's own (fake tensors, tracing), which lie below all others."""
    at = torch._C._get_dispatch_stack_at
    modes = [at(index) for index in range(torch._C._len_torch_dispatch_stack())]
    return [mode for mode in modes if getattr(mode, "_mode_key", None) is None]
