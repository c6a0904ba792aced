"""A GPU, and a private daemon that owns it, for each rank of a training on this machine.

A daemon has one GPU. So where a machine has several, ranks do not share a daemon: each starts its
own, of the GPU that has its number, as launchers and scripts choose them.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from memtide.daemon import Pools
from memtide.locate import find_daemon

# A `device` that only `pools_of` knows.
GPU_OF_RANK = "cuda:rank"


def is_wanted(pools: Pools) -> bool:
    """Whether ranks get a GPU each: that is asked for, or nothing is, and there are several."""
    if pools.device in (None, "auto") and pools.device_bytes != 0:
        return count_gpus() > 1
    return pools.device == GPU_OF_RANK


def pools_of(pools: Pools, rank: int, ranks: int) -> Pools:
    """Of the daemon of one of `ranks`: its GPU, and its part of host memory and of the disk."""
    if pools.device != GPU_OF_RANK:
        return pools
    device = f"cuda:{rank}"
    gpus = count_gpus()
    if 0 < gpus < ranks:
        if rank == 0:
            are = f"{ranks} ranks and {gpus} GPU{'s' if gpus > 1 else ''}"
            print(f"memtide: {are}: chunks are in host memory", file=sys.stderr)
        device = "none"
    return replace(
        pools,
        device=device,
        device_bytes=None if device == "none" else pools.device_bytes,
        host_bytes=pools.host_bytes and pools.host_bytes // ranks,
        ssd_bytes=pools.ssd_bytes and pools.ssd_bytes // ranks,
        daemons=ranks,
    )


def count_gpus() -> int:
    """How many a daemon could own, as CUDA_VISIBLE_DEVICES leaves them; 0, too, where they cannot
    be asked: what is wrong with them a daemon says that is to own one."""
    done = subprocess.run([find_daemon(), "--list-gpus"], capture_output=True, text=True)
    return len(done.stdout.splitlines())
