"""Gives each rank of a training on this machine a GPU, and a private daemon that owns it.

A daemon has one GPU (decision 19). On a machine with several, each rank therefore starts its own
daemon, for the GPU whose number is the rank's, which is also the GPU that scripts choose.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from memtide._capi.locate import find_daemon
from memtide._node.private_daemon import Pools

# This value of `Pools.device` is replaced by `pools_of`; the daemon does not know it.
# tidy(device-types): a value of --device, which no device of torch has.
GPU_OF_RANK = "cuda:rank"


def is_wanted(pools: Pools) -> bool:
    """Whether each rank gets a GPU: on request, or by default on a machine with several."""
    if pools.device in (None, "auto") and pools.device_bytes != 0:
        return count_gpus() > 1
    return pools.device == GPU_OF_RANK


def pools_of(pools: Pools, rank: int, ranks: int) -> Pools:
    """The pools of one rank's daemon: its GPU, and an equal part of host memory and of the disk."""
    if pools.device != GPU_OF_RANK:
        return pools
    # tidy(device-types): a value of --device, which the daemon reads.
    device = f"cuda:{rank}"
    gpus = count_gpus()
    if 0 < gpus < ranks:
        if rank == 0:
            print(
                f"memtide: {ranks} ranks have only {gpus} GPU{'s' if gpus > 1 else ''}: "
                "chunks are in host memory",
                file=sys.stderr,
            )
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
    """Number of GPUs that CUDA_VISIBLE_DEVICES leaves visible; 0 also if they cannot be listed.

    Such an error is not reported here: the daemon reports it when it opens its GPU.
    """
    listing = subprocess.run([find_daemon(), "--list-gpus"], capture_output=True, text=True)
    # The lines that begin with spaces say which daemons have memory of the GPU above them.
    return sum(not line.startswith(" ") for line in listing.stdout.splitlines())
