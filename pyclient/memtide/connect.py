"""Reaching a daemon: the node's, or a private one."""

from __future__ import annotations

import atexit
import contextlib
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from memtide import chunk_size, gpu_each
from memtide import node as nodes
from memtide._native import Client, OpenOptions
from memtide.chunk_size import Parameter
from memtide.daemon import Pools, PrivateDaemon, answers
from memtide.errors import Unavailable
from memtide.locate import default_socket_dir
from memtide.named_job import wait_until_free

# In chunks, as the library has it for one process (client/default_chunk_size.cc).
_SLOTS = {"device": 12, "host": 24}


@dataclass(frozen=True)
class Wish:
    """What a session should be like."""

    pools: Pools = field(default_factory=Pools)
    socket_dir: Path | None = None
    chunk_bytes: int = 0  # 0: what suits `parameters`, or without any the library's default.
    parameters: tuple[Parameter, ...] = ()
    job_name: str = ""  # Of a job that outlives this process: the daemon must stay, too.
    time_to_live_s: int = 0
    host_share_bytes: int = 0
    device_share_bytes: int = 0
    # Processes that train together on this node. They share host memory by need, and the device's
    # pool by equal parts.
    ranks: int = 1
    rank: int = 0  # Which of them this is.


@dataclass
class Connection:
    """An open client, and the private daemon behind it if there is one."""

    client: Client
    socket_dir: Path
    daemon: PrivateDaemon | None


def connect(wish: Wish) -> Connection:
    """Opens a session with the node's daemon if one answers and no pools are asked for; else
    starts a private daemon, which ends with this process.

    Unavailable, NotInstalled, OutOfRoom: with what to do. FailedPrecondition: another process runs
    the job.
    """
    with contextlib.ExitStack() as undo:
        daemon = None
        if wish.job_name:
            socket_dir = _where_jobs_stay(wish)
        else:
            socket_dir, daemon = reach(wish)
        if daemon is not None:
            undo.callback(daemon.stop)
        elif wish.ranks > 1:
            wish = _for_ranks(wish, socket_dir)
        options = OpenOptions(
            socket_dir=str(socket_dir),
            job_name=wish.job_name,
            time_to_live_s=wish.time_to_live_s,
            program=Path(sys.argv[0]).name,
            chunk_bytes=wish.chunk_bytes or _searched(wish, socket_dir),
            host_share_bytes=wish.host_share_bytes,
            device_share_bytes=wish.device_share_bytes,
        )
        connection = Connection(Client(options), socket_dir, daemon)
        atexit.register(undo.pop_all().close)
    return connection


def finds_daemon(wish: Wish) -> bool:
    """Whether a session would be with a daemon that runs already."""
    return not wish.pools.named() and answers(wish.socket_dir or default_socket_dir())


def reach(wish: Wish) -> tuple[Path, PrivateDaemon | None]:
    """Where a daemon listens, as `connect` chooses it; and the private one, which the caller stops.

    Unavailable, NotInstalled: with what to do.
    """
    if finds_daemon(wish):
        return wish.socket_dir or default_socket_dir(), None
    pools = gpu_each.pools_of(wish.pools, wish.rank, wish.ranks)
    daemon = PrivateDaemon.start(pools, wish.socket_dir)
    return daemon.socket_dir, daemon


def _where_jobs_stay(wish: Wish) -> Path:
    socket_dir = wish.socket_dir or default_socket_dir()
    if wish.pools.named() or not answers(socket_dir):
        raise Unavailable(
            f"job '{wish.job_name}' needs a daemon that stays when this process ends, and none "
            f"answers at {socket_dir}: start memtided, or name its sockets by --socket-dir"
        )
    wait_until_free(socket_dir, wish.job_name)
    return socket_dir


def _for_ranks(wish: Wish, socket_dir: Path) -> Wish:
    """For one of several: its part of the device, and chunks of which its parts hold enough."""
    pools = nodes.inspect(socket_dir).pools
    parts = {pool.tier: pool.capacity_bytes // wish.ranks for pool in pools}
    smallest, largest = chunk_size.CANDIDATES[0], chunk_size.CANDIDATES[-1]
    fits = min(parts[tier] // slots for tier, slots in _SLOTS.items() if parts.get(tier))
    chunk_bytes = max(smallest, min(largest, fits // smallest * smallest))
    return replace(
        wish,
        chunk_bytes=wish.chunk_bytes or chunk_bytes,
        device_share_bytes=wish.device_share_bytes or parts.get("device", 0),
    )


def _searched(wish: Wish, socket_dir: Path) -> int:
    if not wish.parameters:
        return 0
    pools = {pool.tier: pool.obtainable_bytes for pool in nodes.inspect(socket_dir).pools}
    for tier, share in (("device", wish.device_share_bytes), ("host", wish.host_share_bytes)):
        if share:
            pools[tier] = share
    choice = chunk_size.search(wish.parameters, pools)
    return choice.chunk_bytes if choice is not None else 0
