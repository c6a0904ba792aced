"""How fast the balloon inflates in the host pool, and how fast one job's share is reclaimed.

host.balloon: a session has filled the pool with chunks whose only valid copy is in host memory; it
uses none of them, but leases as many as it may. Then a program takes all memory beside the daemon's
reserve, and twice the pool's size more. Timed: from when the machine has less memory than the
reserve until the balloon holds three quarters of the pool, all that it can get. The limit is one
thread that writes as many bytes to the same directory.

host.reclaim: the first session has filled the whole pool, then a second one opens and fills its
fair share, half of the pool. Timed: opening and filling. The limit is the same writer with half of
the pool, plus the time in which the first session filled as much.
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

import daemon_process
import machine
from figures import Pair
from memtide._capi.client import Access, Client, Kind, Places
from memtide._capi.library import Options
from memtide._daemon import inspection

_MIB = 2**20
_CHUNK_BYTES, _CHUNKS = 16 * _MIB, 64
_PATIENCE_S = 60.0
# Free memory beyond the reserve at the start: smaller programs do not cause the shortage too early.
_MARGIN_BYTES = 1024 * _MIB

# Takes memory, and keeps it until its standard input is closed.
_PROGRAM = """
import mmap, sys
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
memory = mmap.mmap(-1, int(sys.argv[1]), flags=flags)
sys.stdin.read()
"""


class NotReclaimed(Exception):
    """The balloon or the second share stayed too small; the message has its size and the goal."""


def _available_bytes() -> int:
    return machine.memory_info("MemAvailable") * 1024


def _write_s(directory: Path, size_bytes: int) -> float:
    """Times writing `size_bytes` to blocks that are already reserved, past the page cache."""
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
    """Writes new chunks, one after the other, and returns the seconds that it took."""
    began = time.monotonic()
    first = client.allocate(Kind.OTHER, chunks)
    for place in range(first, first + chunks):
        places = Places([place])
        client.acquire(places, Access.WRITE)
        address = client.properties.base + place * _CHUNK_BYTES
        ctypes.memset(address, place % 251 + 1, _CHUNK_BYTES)
        client.release(places)
    return time.monotonic() - began


def _inflate_s(daemon: daemon_process.Daemon, reserve_bytes: int, wanted_bytes: int) -> float:
    """Seconds from the shortage of memory until the balloon holds `wanted_bytes`."""
    began = 0.0
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        if not began and _available_bytes() < reserve_bytes:
            began = time.monotonic()
        pools = inspection.inspect(daemon.socket_dir).pools
        balloon_bytes = sum(pool.ballooned_bytes for pool in pools)
        if began and balloon_bytes >= wanted_bytes:
            return time.monotonic() - began
        if time.monotonic() > deadline:
            raise NotReclaimed(
                f"the balloon holds {balloon_bytes >> 20} of {wanted_bytes >> 20} MiB"
            )
        time.sleep(0.005)


def _balloon_round(memtided: Path, ssd_parent: Path) -> tuple[float, float]:
    pool_bytes = _CHUNKS * _CHUNK_BYTES
    balloon_bytes = pool_bytes * 3 // 4
    reserve_bytes = _available_bytes() - pool_bytes - _MARGIN_BYTES
    flags = [
        "--device=none",
        f"--host-pool={pool_bytes}",
        f"--ssd-pool={2 * pool_bytes}",
        f"--host-reserve={reserve_bytes}",
    ]
    with daemon_process.running(memtided, ssd_parent, flags) as daemon:
        limit_s = _write_s(daemon.ssd_dir.parent, balloon_bytes)
        client = Client(Options(str(daemon.socket_dir), chunk_bytes=_CHUNK_BYTES))
        try:
            _fill(client, _CHUNKS)
            size = str(_available_bytes() - reserve_bytes + 2 * pool_bytes)
            with subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, size], stdin=subprocess.PIPE
            ) as program:
                try:
                    return limit_s, _inflate_s(daemon, reserve_bytes, balloon_bytes)
                finally:
                    program.communicate()
        finally:
            client.close()


def _reclaim_round(memtided: Path, ssd_parent: Path) -> tuple[float, float]:
    pool_bytes = _CHUNKS * _CHUNK_BYTES
    half = _CHUNKS // 2
    flags = [
        "--device=none",
        f"--host-pool={pool_bytes}",
        f"--ssd-pool={4 * pool_bytes}",
        "--no-host-reserve",
    ]
    with (
        daemon_process.running(memtided, ssd_parent, flags) as daemon,
        contextlib.ExitStack() as open_ones,
    ):
        limit_s = _write_s(daemon.ssd_dir.parent, half * _CHUNK_BYTES)
        options = Options(str(daemon.socket_dir), chunk_bytes=_CHUNK_BYTES)
        first = open_ones.enter_context(contextlib.closing(Client(options)))
        limit_s += _fill(first, half)
        _fill(first, _CHUNKS - half)
        began = time.monotonic()
        second = open_ones.enter_context(contextlib.closing(Client(options)))
        _fill(second, half)
        took_s = time.monotonic() - began
        sessions = inspection.inspect(daemon.socket_dir, sessions=True).sessions
        least_bytes = min(int(session["host_share_bytes"]) for session in sessions)
        # Less than half is enough: slots that the first session still leases are not reclaimed.
        if least_bytes < pool_bytes * 3 // 8:
            raise NotReclaimed(
                f"the smaller share has {least_bytes >> 20} MiB, not half of {pool_bytes >> 20}"
            )
        return limit_s, took_s


def measure(memtided: Path, ssd_parent: Path, rounds: int) -> dict[str, list[Pair]]:
    """Measures the seconds of limit and product in each round, for both figures."""
    pairs: dict[str, list[Pair]] = {"host.balloon": [], "host.reclaim": []}
    for _ in range(rounds):
        for name, one_round in (("host.balloon", _balloon_round), ("host.reclaim", _reclaim_round)):
            load = machine.LoadBesideChildren()
            limit_s, took_s = one_round(memtided, ssd_parent)
            pairs[name].append(Pair(limit_s, took_s, load.of_others()))
    return pairs
