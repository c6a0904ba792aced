"""List optimizers over more than fits: parameter by parameter, in groups that do.

Torch's `_multi_tensor_*` and `_fused_*` functions walk over the lists of all parameters once for
each operation of the update, so that all states pass through the device many times in a step. They
treat each parameter by itself, so called with one part of the lists after the other they give the
same bits, and each state passes once. Where two parameters have a state or bytes in common, the
order of operations counts, and the lists stay whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memtide._memory.managed_memory import ManagedMemory
from memtide._optimizer_step.accesses import accesses, collisions
from memtide._telemetry.observer import Observer
from memtide._util.script_modes import in_mode_of_script

# One group is updated, the next one comes to the GPU, and the last one leaves it.
_GROUPS_ON_GPU = 3


def in_groups(
    memory: ManagedMemory, observer: Observer, update: Callable[..., None]
) -> Callable[..., None]:
    """An update function that is called with as many parameters at a time as fit."""

    @functools.wraps(update)
    def grouped(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        ledger = memory.ledger
        # A mode of the script may draw random numbers, say, in the order of the operations.
        if not ledger.active or not memory.addresses.here or in_mode_of_script():
            update(params, *args, **kwargs)
            return
        values = [params, *args, *kwargs.values()]
        lists = [v for v in values if isinstance(v, list) and len(v) == len(params)]
        used = accesses((values, True) for values in lists)
        if any(len(owners) > 1 for owners in collisions(used)):
            update(params, *args, **kwargs)
            return
        capacity = max(1, ledger.limit)
        spans = list(_spans(memory, lists, len(params), capacity))
        if ledger.strict and len(spans) > 1:
            capacity = max(1, capacity // _GROUPS_ON_GPU)
            spans = list(_spans(memory, lists, len(params), capacity))
        for start, end in spans:
            if ledger.strict:  # Else the step's mode sees each operation.
                observer.moment("step", update.__name__)
            parts = {id(whole): whole[start:end] for whole in lists}
            update(
                parts.get(id(params), params),
                *(parts.get(id(value), value) for value in args),
                **{name: parts.get(id(value), value) for name, value in kwargs.items()},
            )
            for whole in lists:  # State that was born goes into the lists.
                whole[start:end] = parts[id(whole)]

    return grouped


def _spans(
    memory: ManagedMemory, lists: list[list[Any]], count: int, capacity: int
) -> Iterator[tuple[int, int]]:
    """Runs of parameters whose tensors lie in at most `capacity` chunks; at least one each."""
    start = 0
    places: set[int] = set()
    for index in range(count):
        own_chunks: set[int] = set()
        for values in lists:
            if isinstance(values[index], torch.Tensor):
                own_chunks.update(memory.addresses.element_places(values[index]))
        if index > start and len(places | own_chunks) > capacity:
            yield start, index
            start, places = index, set()
        places |= own_chunks
    if count:
        yield start, count
