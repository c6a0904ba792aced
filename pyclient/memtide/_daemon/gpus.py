"""The GPUs that this process sees, and which of them a daemon of its own has."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import Pools


def of_one_process(pools: Pools, rank: int) -> Pools:
    """The pools of a daemon that only one process uses: on a machine with several GPUs it has that
    of the process's local rank, unless `pools` names others."""
    if pools.device not in (None, "auto") or pools.device_bytes == 0:
        return pools
    gpus = count_gpus()
    # tidy(device-types): a value of --device, which the daemon reads.
    return replace(pools, device=f"cuda:{rank % gpus}") if gpus > 1 else pools


def count_gpus() -> int:
    """Number of GPUs that CUDA_VISIBLE_DEVICES leaves visible; 0 also if they cannot be listed.

    Such an error is not reported here: the daemon reports it when it opens its GPUs.
    """
    listing = subprocess.run([find_daemon(), "--list-gpus"], capture_output=True, text=True)
    # The lines that begin with spaces say which daemons have memory of the GPU above them.
    return sum(not line.startswith(" ") for line in listing.stdout.splitlines())
