"""The chunk size of a run: that of docs/decisions/0011, for a model's blocks."""

from __future__ import annotations

import functools

from memtide._memory import chunk_size
from memtide._plan.estimate.pools import Pools
from memtide._plan.model import Model
from memtide._plan.training import States

# A block's parameters are in tensors; how many they are does not matter much to the search.
_TENSORS = 8
_LEAST_SLOTS = 4  # With fewer, no tier is opened.


@functools.lru_cache(maxsize=4096)
def _search(tensors: tuple[tuple[int, bool, int], ...], device: int, host: int, drive: int) -> int:
    parameters = [
        chunk_size.Parameter(size, trained=trained, states=(states,) if trained else ())
        for size, trained, states in tensors
    ]
    pools = {"device": device, "host": host, "ssd": drive}
    found = chunk_size.search(parameters, pools, min_slots=_LEAST_SLOTS)
    return found.chunk_bytes if found is not None else chunk_size.CANDIDATES[0]


def chunk_bytes_for(model: Model, states: States, pools: Pools) -> int:
    """The size that suits the model and the pools."""
    tensors = []
    for block in model.each_block():
        elements = block.parameters // _TENSORS
        if not elements:
            continue
        trained = block.trained_parameters > 0
        one = (int(elements * states.weight), trained, int(elements * states.optimizer))
        tensors += [one] * _TENSORS
    return _search(tuple(tensors), int(pools.device), int(pools.host), int(pools.drive))
