"""The chunk size of a run: that of docs/decisions/0011, for a model's blocks."""

from __future__ import annotations

import functools

from memtide._memory import chunk_size
from memtide._plan.estimate.pools import Pools, shadow_bytes, states_bytes
from memtide._plan.model import Model
from memtide._plan.training import States

# A block's parameters are in tensors; how many they are does not matter much to the search.
_TENSORS = 8
_LEAST_SLOTS = 4  # With fewer, no tier is opened.
# What the host pool has for a step of the largest parameters in parts beside the script's leases
# (_node/least_pools.py), and where all fits, for the last chunk of each arena.
LEAST_HOST_SLOTS = 12
# A run's own rule: parts of a step can then begin beside the backward pass.
_USUAL_HOST_SLOTS = 24
_SMALLEST_BYTES: int = chunk_size.CANDIDATES[0]


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
    """The size that suits the model and the pools. Without a device, that of a run without a plan
    (client/rpc/default_chunk_size.cc): it moves more bytes than the searched one in fewer calls,
    which cost the processor that computes more (docs/decisions/0011)."""
    if not pools.device:
        # The plan's host pool is no larger than what it holds.
        host = min(pools.host, states_bytes(model, states) + shadow_bytes(model, states))
        whole = int(host / _USUAL_HOST_SLOTS) // _SMALLEST_BYTES * _SMALLEST_BYTES
        largest: int = chunk_size.CANDIDATES[-1]
        return min(max(whole, _SMALLEST_BYTES), largest)
    tensors = []
    for block in model.each_block():
        elements = block.parameters // _TENSORS
        if not elements:
            continue
        trained = block.trained_parameters > 0
        one = (int(elements * states.weight), trained, int(elements * states.optimizer))
        tensors += [one] * _TENSORS
    return _search(tuple(tensors), int(pools.device), int(pools.host), int(pools.drive))
