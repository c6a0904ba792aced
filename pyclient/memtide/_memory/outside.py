"""The bytes of models that are in no chunk, and why."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from memtide._memory.adoption import is_alone
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.held_tensors import in_attributes_of
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.storage_memory import is_torchs
from memtide._memory.tensor_parts import parts_of
from memtide._util.model_bytes import ModelBytes


def model_bytes(memory: ManagedMemory, models: Iterable[nn.Module]) -> ModelBytes:
    """The bytes of models now."""
    found = ModelBytes()
    seen: set[int] = set()
    for module in {module for model in models for module in model.modules()}:
        held = (*module._parameters.values(), *module._buffers.values(), *in_attributes_of(module))
        for tensor in held:
            if tensor is None or id(tensor) in seen or is_lazy(tensor):
                continue
            seen.add(id(tensor))
            parts = parts_of(tensor)
            if not parts:
                found.total += tensor.numel() * tensor.itemsize
                found.outside["in layouts that memtide leaves alone"] += (
                    tensor.numel() * tensor.itemsize
                )
            for part in parts:
                found.total += part.nbytes
                if part.nbytes and not memory.addresses.manages(part):
                    found.outside[_reason(memory, part)] += part.nbytes
    return found


def _reason(memory: ManagedMemory, tensor: torch.Tensor) -> str:
    if tensor.nbytes < SMALLEST_BYTES:
        return "in tensors of less than 1 KiB"
    if tensor.device != memory.addresses.device:
        return f"on {tensor.device}"
    if not is_alone(tensor):
        return "over memory that several tensors share"
    if not is_torchs(tensor.untyped_storage()):
        return "over memory that is not torch's"
    return "not used in a forward pass yet, or replaced since"
