"""A drive: how fast large blocks are written and read past the page cache, several at once.

The file has no name in its directory, so that nothing is left however the process ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from memtide_plan.measure.repeated import Rate

# As the daemon's transfers are: whole chunks, a few at once.
_BLOCK_BYTES = 8 * 2**20
_AT_ONCE = 4
_MOST_BYTES = 2 * 2**30
# At most this part of what is free on the file system.
_PART_OF_FREE = 8
_FEWEST_BLOCKS = 8


@dataclass(frozen=True, kw_only=True)
class MeasuredDrive:
    """The measurements of the drive that has a directory."""

    read: Rate
    write: Rate
    free_bytes: int
    written_bytes: int


def measure(directory: Path, seconds: float) -> MeasuredDrive | str:
    """Writes and reads at most 2 GiB, and an eighth of what is free, for half of `seconds` each.
    Otherwise the reason why nothing was measured: no direct I/O, or too little room."""
    directory.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(directory).free
    blocks = min(_MOST_BYTES, free_bytes // _PART_OF_FREE) // _BLOCK_BYTES
    if blocks < _FEWEST_BLOCKS:
        return f"only {free_bytes >> 20} MiB are free in {directory}"
    try:
        file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR):
            return f"the file system of {directory} has no direct I/O"
        return f"no file can be made in {directory}: {error.strerror}"
    buffers = [mmap.mmap(-1, _BLOCK_BYTES) for _ in range(_AT_ONCE)]
    try:
        for buffer in buffers:
            buffer[:] = os.urandom(_BLOCK_BYTES)  # A drive may compress what repeats.
        written, write = _for_a_time(
            lambda block, buffer: os.pwrite(file, buffer, block * _BLOCK_BYTES),
            buffers,
            blocks,
            seconds / 2,
            lambda: os.fdatasync(file),
        )
        _, read = _for_a_time(
            lambda block, buffer: os.preadv(file, [buffer], block * _BLOCK_BYTES),
            buffers,
            written,
            seconds / 2,
            lambda: None,
        )
    finally:
        os.close(file)
        for buffer in buffers:
            buffer.close()
    return MeasuredDrive(
        read=read, write=write, free_bytes=free_bytes, written_bytes=written * _BLOCK_BYTES
    )


def _for_a_time(
    transfer: Callable[[int, mmap.mmap], int],
    buffers: list[mmap.mmap],
    blocks: int,
    seconds: float,
    finish: Callable[[], None],
) -> tuple[int, Rate]:
    """Transfers blocks from the first on, one after another with each buffer, until all are done or
    the time is over. Returns how many were, and the rate with `finish` in it."""
    began_s = time.monotonic()

    def work(number: int) -> int:
        done = 0
        for block in range(number, blocks, len(buffers)):
            if time.monotonic() - began_s >= seconds:
                break
            transfer(block, buffers[number])
            done += 1
        return done

    with ThreadPoolExecutor(len(buffers)) as threads:
        each = list(threads.map(work, range(len(buffers))))
    finish()
    took_s = time.monotonic() - began_s
    rate = sum(each) * _BLOCK_BYTES / took_s
    # Blocks from the first to the last one before which none is missing.
    return min(each) * len(buffers), Rate(per_s=rate, spread=0.0, took_s=took_s)
