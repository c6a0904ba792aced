"""How fast the host pool gives way to a program, and one job's share of it to another job.

A session has filled the pool with chunks that only host memory has; it uses none of them, but holds
leases on as many as it may. Then a program takes what the machine has beside the daemon's reserve,
and twice the pool's size more. Timed: from when the machine has less than the reserve until what
jobs spare, three quarters of the pool, is the machine's. Against it: one writer, as many bytes, in
the same directory.

Or another session opens, and fills half of the pool, its equal part: until then all of it was the
first one's. Timed: both. Against it: the same writer, half of the pool, and the time that the
first session took to fill as much.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import machine
import memtide.node
import node
from figures import Pair
from memtide._native import Access, Client, Kind, OpenOptions, Places

_MIB = 2**20
_CHUNK_BYTES, _CHUNKS = 16 * _MIB, 64
_PATIENCE_S = 60.0
# What programs may take before it begins: others that come and go must not begin it.
_MARGIN_BYTES = 1024 * _MIB

# Takes memory, and keeps it until it is told to end.
_PROGRAM = """
import mmap, sys
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
memory = mmap.mmap(-1, int(sys.argv[1]), flags=flags)
sys.stdin.read()
"""


class NothingGivenWay(Exception):
    """The pool, or a share, did not give way; the message says how far it came."""


def _available_bytes() -> int:
    return machine.memory_info("MemAvailable") * 1024


def _write_s(directory: Path, size_bytes: int) -> float:
    """How long writing that much past the page cache takes, into blocks that are reserved."""
    path = directory / "limit"
    buffer = mmap.mmap(-1, _CHUNK_BYTES)
    buffer.write(os.urandom(_CHUNK_BYTES))
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(file, 0, size_bytes)
        began = time.monotonic()
        for offset in range(0, size_bytes, _CHUNK_BYTES):
            os.pwrite(file, buffer, offset)
        return time.monotonic() - began
    finally:
        os.close(file)
        path.unlink()


def _fill(client: Client, chunks: int) -> float:
    """Writes new chunks, one after the other. Returns how long it took."""
    began = time.monotonic()
    first = client.allocate(Kind.OTHER, chunks)
    for place in range(first, first + chunks):
        places = Places([place])
        client.acquire(places, Access.WRITE)
        address = client.properties.base + place * _CHUNK_BYTES
        ctypes.memset(address, place % 251 + 1, _CHUNK_BYTES)
        client.release(places)
    return time.monotonic() - began


def _given_way_s(daemon: node.Node, reserve_bytes: int, wanted_bytes: int) -> float:
    """From when the machine is short until it has so much of the pool."""
    began = 0.0
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        if not began and _available_bytes() < reserve_bytes:
            began = time.monotonic()
        pools = memtide.node.inspect(daemon.socket_dir).pools
        withheld_bytes = sum(pool.withheld_bytes for pool in pools)
        if began and withheld_bytes >= wanted_bytes:
            return time.monotonic() - began
        if time.monotonic() > deadline:
            raise NothingGivenWay(f"{withheld_bytes >> 20} of {wanted_bytes >> 20} MiB")
        time.sleep(0.005)


def _round(memtided: Path, ssd_parent: Path) -> tuple[float, float]:
    pool_bytes = _CHUNKS * _CHUNK_BYTES
    spared_bytes = pool_bytes * 3 // 4
    reserve_bytes = _available_bytes() - pool_bytes - _MARGIN_BYTES
    flags = [
        "--device=none",
        f"--host-pool={pool_bytes}",
        f"--ssd-pool={2 * pool_bytes}",
        f"--host-reserve={reserve_bytes}",
    ]
    with node.running(memtided, ssd_parent, flags) as daemon:
        limit_s = _write_s(daemon.ssd_dir.parent, spared_bytes)
        client = Client(OpenOptions(str(daemon.socket_dir), chunk_bytes=_CHUNK_BYTES))
        try:
            _fill(client, _CHUNKS)
            size = str(_available_bytes() - reserve_bytes + 2 * pool_bytes)
            with subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, size], stdin=subprocess.PIPE
            ) as program:
                try:
                    return limit_s, _given_way_s(daemon, reserve_bytes, spared_bytes)
                finally:
                    program.communicate()
        finally:
            client.close()


def _ceding_round(memtided: Path, ssd_parent: Path) -> tuple[float, float]:
    pool_bytes = _CHUNKS * _CHUNK_BYTES
    half = _CHUNKS // 2
    flags = [
        "--device=none",
        f"--host-pool={pool_bytes}",
        f"--ssd-pool={4 * pool_bytes}",
        "--no-host-reserve",
    ]
    with node.running(memtided, ssd_parent, flags) as daemon, contextlib.ExitStack() as open_ones:
        limit_s = _write_s(daemon.ssd_dir.parent, half * _CHUNK_BYTES)
        options = OpenOptions(str(daemon.socket_dir), chunk_bytes=_CHUNK_BYTES)
        first = open_ones.enter_context(contextlib.closing(Client(options)))
        limit_s += _fill(first, half)
        _fill(first, _CHUNKS - half)
        began = time.monotonic()
        second = open_ones.enter_context(contextlib.closing(Client(options)))
        _fill(second, half)
        took_s = time.monotonic() - began
        sessions = memtide.node.inspect(daemon.socket_dir, sessions=True).sessions
        least_bytes = min(int(session["host_share_bytes"]) for session in sessions)
        # What the first one still leases stays its own.
        if least_bytes < pool_bytes * 3 // 8:
            raise NothingGivenWay(f"{least_bytes >> 20} MiB, not half of {pool_bytes >> 20}")
        return limit_s, took_s


def measure(memtided: Path, ssd_parent: Path, rounds: int) -> dict[str, list[Pair]]:
    """Seconds of both, in each round, of `host.give_way` and `host.cede`."""
    pairs: dict[str, list[Pair]] = {"host.give_way": [], "host.cede": []}
    for _ in range(rounds):
        for name, one_round in (("host.give_way", _round), ("host.cede", _ceding_round)):
            load = machine.LoadBesideChildren()
            limit_s, took_s = one_round(memtided, ssd_parent)
            pairs[name].append(Pair(limit_s, took_s, load.of_others()))
    return pairs
