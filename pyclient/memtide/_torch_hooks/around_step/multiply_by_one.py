"""Multiplications in place by exactly 1, left out where they would write to chunks.

`torch.nn.utils.clip_grad_norm_` multiplies all gradients by its coefficient, also where it clips
nothing and the coefficient is 1. To chunks that is a write like any other: what was made of these
gradients during backward (speculative_step.py) would not count. So the two operations that it ends
in are replaced, `torch._foreach_mul_` and `Tensor.mul_`: for every script, whenever it imported
what.

x * 1 is x to the bit, infinite or not. A NaN stays one, with the bits that it has, where torch
writes others for some of 16 bits. (Gradients with a NaN have a norm that is NaN, so there is no
coefficient of 1, but for the norm of order 0.) Where x * 1 is not x, or others want to see it,
torch does it:

- whole and complex numbers (inf * (1 + 0i) is NaN in part);
- while this thread takes subnormal numbers for zero (`torch.set_flush_denormal`);
- what autograd records, subclasses with `__torch_function__`, and everything while a mode
  of somebody else is active or code is compiled.

Autograd's counters go up as if it had been done. To know a factor on a GPU is to wait for what has
been launched there: that is done only while there are such parts.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import _get_current_dispatch_mode

from memtide._memory.address_map import AddressMap
from memtide._optimizer_step.speculative_step import SpeculativeSteps
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.oversized_operands import OversizedOperandsMode
from memtide._util.devices import gpu_module
from memtide._util.program_capture import is_captured
from memtide._util.script_modes import in_mode_of_script

_SUBNORMAL = 5e-324
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# The modes that need not see what is left out.
_UNINTERESTED = (type(None), LeaseDispatchMode, OversizedOperandsMode)


class _InPlaceOf:
    """A function of torch's that is called otherwise. It equals torch's own: modes and subclasses
    of the script's look it up in tables that were made before, or compare it with what is there."""

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original, self._call = original, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)


def multiplying(
    addresses: AddressMap, speculative: SpeculativeSteps, original: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """torch.Tensor.mul_."""

    def mul_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if (
            is_captured()
            or len(args) != 1
            or kwargs
            or _is_script_s((tensor, *args))
            or not _is_one(args[0], speculative)
            or not _stays(addresses, tensor)
        ):
            return original(tensor, *args, **kwargs)
        increment_version(tensor)
        return tensor

    return _InPlaceOf(original, mul_)


def multiplying_lists(
    addresses: AddressMap, speculative: SpeculativeSteps, original: Callable[..., Any]
) -> Callable[..., Any]:
    """torch._foreach_mul_: what is not in chunks is still multiplied."""

    def _foreach_mul_(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_captured() and has_torch_function(operands := (*tensors, *args)):
            return handle_torch_function(replaced, operands, tensors, *args, **kwargs)
        if is_captured() or len(args) != 1 or kwargs or _is_script_s((*tensors, *args)):
            return original(tensors, *args, **kwargs)
        if not _is_one(args[0], speculative):
            return original(tensors, *args, **kwargs)
        unchanged = [tensor for tensor in tensors if _stays(addresses, tensor)]
        if not unchanged:
            return original(tensors, *args, **kwargs)
        known = set(map(id, unchanged))
        if rest := [tensor for tensor in tensors if id(tensor) not in known]:
            original(rest, *args)
        increment_version(unchanged)
        return tensors

    replaced = _InPlaceOf(original, _foreach_mul_)
    return replaced


def _is_script_s(operands: Sequence[Any]) -> bool:
    """Whether a mode or a subclass of the script's is asked what the operation does. A default
    device is none."""
    others = (each for each in operands if isinstance(each, torch.Tensor))
    return in_mode_of_script() or any(type(each) not in _PLAIN for each in others)


def _is_one(factor: Any, speculative: SpeculativeSteps) -> bool:
    if type(factor) in (int, float):
        return bool(factor == 1)
    if type(factor) is not torch.Tensor or factor.dim():
        return False
    on_gpu = gpu_module(factor.device.type) is not None
    if not (speculative.in_progress if on_gpu else factor.is_cpu):
        return False
    if factor.requires_grad or not factor.is_floating_point():
        return False
    try:
        return bool(factor.item() == 1)
    except RuntimeError:  # It only stands for others, as under vmap.
        return False


def _stays(addresses: AddressMap, tensor: Any) -> bool:
    """Whether a tensor is in chunks, and times 1 it is what it is."""
    try:
        if not isinstance(tensor, torch.Tensor) or not addresses.manages(tensor):
            return False
    except RuntimeError:  # It has no memory.
        return False
    return (
        tensor.is_floating_point()
        and not tensor.is_inference()
        and 0 not in tensor.stride()  # Torch refuses to write to these.
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and type(_get_current_dispatch_mode()) in _UNINTERESTED
        and _SUBNORMAL * 1.0 != 0.0
    )
