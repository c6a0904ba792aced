"""A pool that is too small is refused with the least that opens."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

import pytest
from harness import short_directory
from memtide._daemon import least_pools
from memtide._daemon.connect import SessionRequest, connect
from memtide._daemon.private_daemon import Pools, PrivateDaemon
from memtide._util.sizes import parse_size
from memtide.errors import MemtideError, UsageError

_AMPLE = Pools(device_bytes=64 << 20, host_bytes=256 << 20, ssd_bytes=256 << 20, device="emulated")
_CHUNK_BYTES = 2 << 20


def _sessions(pools: Pools, ranks: int) -> int:
    """How many of this many ranks open a session with a daemon that has these pools."""
    opened = 0
    with short_directory() as ssd_dir, contextlib.ExitStack() as ends:
        daemon = PrivateDaemon.start(replace(pools, ssd_dir=ssd_dir))
        ends.callback(daemon.stop)
        for rank in range(ranks):
            request = SessionRequest(
                socket_dir=daemon.socket_dir, chunk_bytes=_CHUNK_BYTES, ranks=ranks, rank=rank
            )
            with contextlib.suppress(MemtideError):
                ends.callback(connect(request).client.close)
                opened += 1
    return opened


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("tier", ["device", "host", "ssd"])
def test_the_least_that_is_named_opens_and_less_does_not(tier: str, ranks: int) -> None:
    with pytest.raises(UsageError) as refusal:
        least_pools.check(replace(_AMPLE, **{f"{tier}_bytes": _CHUNK_BYTES}), ranks)
    who = f"{ranks} ranks need" if ranks > 1 else "a run needs"
    named = re.fullmatch(
        rf"--{tier}-pool 2.00 MiB is too small: {who} at least (.* MiB) \(.*\)", str(refusal.value)
    )
    assert named is not None
    least_bytes = parse_size(named[1])
    least = replace(_AMPLE, **{f"{tier}_bytes": least_bytes})
    least_pools.check(least, ranks)
    assert _sessions(least, ranks) == ranks
    less = replace(_AMPLE, **{f"{tier}_bytes": least_bytes - _CHUNK_BYTES})
    assert _sessions(less, ranks) < ranks


def test_the_least_grows_with_the_chunks() -> None:
    with pytest.raises(UsageError, match=r"at least 32\.0 MiB \(4 chunks of 8\.00 MiB\)"):
        least_pools.check(Pools(host_bytes=24 << 20), chunk_bytes=8 << 20)
    least_pools.check(Pools(host_bytes=32 << 20), chunk_bytes=8 << 20)


def test_the_least_is_of_the_chunks_that_the_other_pools_ask_for() -> None:
    pools = Pools(device="none", host_bytes=192 << 20, ssd_bytes=16 << 20)
    with pytest.raises(UsageError, match=r"--ssd-pool 16\.0 MiB .* 32\.0 MiB \(4 chunks of 8\.00"):
        connect(SessionRequest(pools=pools))


def test_a_rank_without_room_names_what_all_ranks_need() -> None:
    with short_directory() as ssd_dir, contextlib.ExitStack() as ends:
        daemon = PrivateDaemon.start(
            Pools(device="none", host_bytes=16 << 20, ssd_bytes=64 << 20, ssd_dir=ssd_dir)
        )
        ends.callback(daemon.stop)
        first = SessionRequest(socket_dir=daemon.socket_dir, ranks=2)
        ends.callback(connect(first).client.close)
        with pytest.raises(UsageError, match="--host-pool 16.0 MiB is too small: 2 ranks need at "):
            connect(replace(first, rank=1))
