"""The chunk size of a run by a plan: that of a run without one (client/rpc/default_chunk_size.cc).

The search that `memtide.offload` uses (_memory/chunk_size.py) moves fewer bytes in more chunks,
each of which costs the script's thread time (docs/decisions/0011).
"""

from __future__ import annotations

from memtide._memory.chunk_size import CANDIDATES, CANDIDATES_ON_DEVICE
from memtide._plan_file.model import Model
from memtide._plan_file.training import States

from memtide_plan.estimate.pools import Pools, shadow_bytes, states_bytes

# The slots that the host pool has for a step of the largest parameters in parts beside the script's
# leases (_daemon/least_pools.py), and where all fits, for the last chunk of each arena.
LEAST_HOST_SLOTS = 12
# Parts of a step can then begin beside the backward pass.
_HOST_SLOTS = 24
# Eviction then has a choice of victims.
_DEVICE_SLOTS = 12
_SMALLEST_BYTES: int = CANDIDATES[0]


def chunk_bytes_for(model: Model, states: States, pools: Pools) -> int:
    """The size that suits the model and the pools."""
    # The plan's host pool is no larger than what it holds.
    host = min(pools.host, states_bytes(model, states) + shadow_bytes(model, states))
    suitable = host / _HOST_SLOTS
    largest: int = CANDIDATES[-1]
    if pools.device:
        suitable = min(suitable, pools.device / _DEVICE_SLOTS)
        largest = CANDIDATES_ON_DEVICE[-1]
    whole = int(suitable) // _SMALLEST_BYTES * _SMALLEST_BYTES
    return min(max(whole, _SMALLEST_BYTES), largest)
