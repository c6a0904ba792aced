"""The smallest pools with which the sessions of a run open."""

from __future__ import annotations

from memtide._daemon.private_daemon import Pools
from memtide._util.sizes import format_size
from memtide.errors import UsageError

# The daemon says its least, Limits.min_slots, once it runs, and these sizes are checked before.
_MIN_SLOTS = 4
# The slots of the host pool that the daemon guarantees to a job, so that it can step its largest
# part, as long as it has that many left; the last job to open may have fewer.
_GUARANTEED_SLOTS = 12
_SMALLEST_CHUNK_BYTES = 2 * 2**20


def check(
    pools: Pools, ranks: int = 1, chunk_bytes: int = 0, ranks_on_device: int | None = None
) -> None:
    """UsageError: `ranks` sessions with chunks of this size (0: of any) do not fit the pools that
    have a size. More than three ranks may not fit larger ones either. `ranks_on_device`: how many
    of them share a device; None: all."""
    chunk_bytes = chunk_bytes or _SMALLEST_CHUNK_BYTES
    host_slots = (ranks - 1) * _GUARANTEED_SLOTS + _MIN_SLOTS
    for flag, pool_bytes, slots in (
        ("--device-pool", pools.device_bytes or None, (ranks_on_device or ranks) * _MIN_SLOTS),
        ("--host-pool", pools.host_bytes, host_slots),
        ("--ssd-pool", pools.ssd_bytes or None, ranks * _MIN_SLOTS),
    ):
        least_bytes = slots * chunk_bytes
        if pool_bytes is not None and pool_bytes < least_bytes:
            who = f"{ranks} ranks need" if ranks > 1 else "a run needs"
            raise UsageError(
                f"{flag} {format_size(pool_bytes)} is too small: {who} at least "
                f"{format_size(least_bytes)} ({slots} chunks of {format_size(chunk_bytes)})"
            )
