"""Which process of a distributed training this is, as far as anything says it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """A process's number among all of a training, and among those of them on this machine."""

    number: int = 0
    local: int = 0
    local_count: int = 1


# The rank as which torch.multiprocessing.start_processes has started this process.
spawned: Rank | None = None


def in_environment() -> Rank | None:
    """The rank that a launcher has put into the environment."""
    local = _variable("LOCAL_RANK")
    # torchrun and Ray, DeepSpeed, Lightning.
    count = _variable("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")
    if local is None or count is None or local >= count:
        return None
    number = _variable("RANK")
    if number is None:
        number = local + (_variable("NODE_RANK") or 0) * count
    return Rank(number, local, count)


def of_this_process() -> Rank:
    """The rank that the environment or torch says now; the only process, if they say nothing."""
    rank = in_environment() or spawned
    if rank is not None:
        return rank
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        number = distributed.get_rank()
        return Rank(number, number, distributed.get_world_size())
    return Rank(_variable("RANK") or 0)


def are_on_other_nodes() -> bool:
    """Whether some ranks of this process's training are on another machine, as far as the
    environment of a launcher says."""
    local, world = _variable("LOCAL_WORLD_SIZE"), _variable("WORLD_SIZE")
    return local is not None and world is not None and local < world


def _variable(*names: str) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)
