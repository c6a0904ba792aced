"""Gathering: parameters that are left in nearly empty chunks move together.

A chunk is freed when its last tensor ends. Where a model was built with memtide watching, and most
of its weights were then replaced (by quantized ones, by merged or pruned ones), small parameters
that stay hold a chunk each. They are moved before the first step, as nothing but the tensors
themselves knows their addresses then. Later the layout of gradients and states, manifests and
predictions know them, too, and there is little to gain: a script that replaces parameters while it
trains replaces them by groups, whose chunks end with them (after 12 replacements of all parameters
of a Gaussian splatting, 0.84 MB of live ones had one chunk of 2 MiB).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memtide._capi.client import Kind
from memtide._memory.adoption import is_alone, ordinary_tensors, restore
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.storage_copies import copy_bytes
from memtide._memory.tensor_parts import is_plain
from memtide.errors import ResourceExhausted


def gather_parameters(memory: ManagedMemory, parameters: Iterable[torch.Tensor]) -> None:
    """Moves the parameters in nearly empty chunks together, and frees these chunks. One whose
    storage has other users stays."""
    arena = memory.arenas.of(Kind.PARAMETER)
    sparse = arena.nearly_empty_places()
    if len(sparse) < 2:
        return
    moved = [
        parameter
        for parameter in parameters
        if is_plain(parameter)
        and memory.addresses.manages(parameter)
        and is_alone(parameter)
        and sparse.issuperset(memory.addresses.span_places(parameter))
    ]
    # A span is free once its parameter has left, so all have new places before the first moves.
    with arena.avoiding(sparse):
        try:
            targets = [arena.like_storage_of(parameter) for parameter in moved]
        except ResourceExhausted:  # The pools have no chunk for them: they stay.
            return
    for parameter, target in zip(moved, targets, strict=True):
        restore(memory, parameter)
        with ordinary_tensors():
            copy_bytes(memory, parameter, target, starts_threads=False)
            parameter.data = target
    arena.trim()
