"""Evicts chunks from the device when the script itself runs out of device memory.

The script's own allocations come first: chunks are evicted, and the operation that failed is run
again. Where the fewest chunks are left, activations that are kept leave, too. Chunks return, up to
the share with which the job began, once whole iterations leave memory free. Between two moments of
an iteration nothing becomes free, because torch's allocator holds its memory until `empty_cache`
(docs/decisions/0012). If the script runs out of memory again after a return, the next return waits
for twice as many iterations.

CUDA's libraries (cuBLAS, cuDNN, NCCL) and kernels that are loaded at their first use allocate past
torch's allocator, which has taken all that chunks left. Their errors do not say how much they need,
so more is given back for them, and stays free for the next one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Protocol

import torch

from memtide._memory.managed_memory import ManagedMemory
from memtide._util.devices import gpu_module
from memtide._util.sizes import format_size, parse_size
from memtide.errors import DeadlineExceeded, MemtideError, ResourceExhausted

_TIMEOUT_MS = 60_000
# Iterations without a shortage before chunks return: the first time, and at most.
_PATIENCE, _MOST_PATIENCE = 2, 1024
# More than cuBLAS's workspace, cuDNN's handle or NCCL's buffers of one communicator.
_LIBRARIES_BYTES = 512 * 2**20
# The words that these errors have in common, as torch passes them on.
_LIBRARY_IS_SHORT = re.compile(
    r"out of memory|CU[A-Z]+_(STATUS_)?[A-Z_]*ALLOC(ATION)?_FAILED"
    # cuBLAS has no other error for a handle that does not fit.
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling .?cublasCreate"
)
_ALLOCATION_SIZE = re.compile(r"Tried to allocate ([0-9.]+) ([KMGT]?i?B)")


class AllocatorLimit(Protocol):
    """The limit of torch's allocator: that of a budget, beside chunks."""

    def left_on_device_bytes(self) -> int:
        """Bytes that are left beside all that is used."""

    def limit_allocator(self) -> None:
        """Gives the allocator the bytes that the device share leaves. Called after the share has
        changed."""


class DeviceOomHandler:
    """The limit of the device share of one client's job, which shrinks as the script's own use
    grows. Below it the share follows the needs of other jobs (docs/decisions/0018)."""

    def __init__(self, memory: ManagedMemory, limit: AllocatorLimit | None = None) -> None:
        """`limit`: that of the script's own memory on the device; None: there is none."""
        self._memory = memory
        self._addresses = memory.addresses
        self._slots = self._share_slots = memory.client.properties.device_slots
        self._min_slots = memory.client.limits.min_slots
        self._iterations = 0  # Since the last shortage.
        self._patience = _PATIENCE
        self._returned = False  # Whether chunks have returned since the last shortage.
        self._shortages: int | None = None  # Count in torch's allocator, at the first call.
        self._peak_bytes = 0  # The largest peak of torch's allocator, which scripts reset.
        # The script's bytes when has_headroom was first called in this iteration, and in the
        # iteration before.
        self._kept_bytes: int | None = None
        self._kept_before_bytes: int | None = None
        self._slack_bytes = memory.addresses.chunk_bytes  # Stays free when chunks return.
        self._limit = limit
        self._libraries_bytes = 0  # Left free for CUDA's libraries, once one of them was short.
        self.was_short = False  # In the life of this process.
        # Moves activations of that many bytes to chunks; whether some did. Another part sets it.
        self.move_activations: Callable[[int], bool] = lambda _: False

    def with_room(self, run: Callable[[], Any]) -> Any:
        """Calls `run`; if it finds too little memory, as `retry`."""
        try:
            return run()
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            short = error
        return self.retry(short, run)

    def retry(self, short: RuntimeError, run: Callable[[], Any]) -> Any:
        """Calls `run`, which failed with `short`, again, with fewer chunks on the device each time.

        torch.OutOfMemoryError: it also fails with the fewest chunks. REQUIRES: is_shortage(short).
        """
        self.was_short = True
        if self._memory.ledger.holding:  # In another thread than this. No chunk can leave.
            raise short
        if is_shortage_of_a_library(short):
            self._libraries_bytes = _LIBRARIES_BYTES
        wanted = _asked_bytes(short) + self._libraries_bytes
        self._iterations = 0
        self._slack_bytes = max(wanted, self._addresses.chunk_bytes)
        if self._returned:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._returned = False
        while self._slots > self._min_slots or self.move_activations(wanted):
            self._give_back(wanted)
            try:
                return run()
            except RuntimeError as error:
                if not is_shortage(error):
                    raise
                short = error
        raise torch.OutOfMemoryError(
            f"{short} memtide keeps {self._slots} chunks of "
            f"{format_size(self._addresses.chunk_bytes)} on the device, the fewest that it needs"
        ) from short

    @property
    def is_shrunk(self) -> bool:
        """Whether chunks have made room for the script, and have not returned."""
        return self._slots != self._share_slots

    def has_headroom(self, more_bytes: int) -> bool:
        """Whether the script's own use may exceed its peak by an eighth and `more_bytes` before
        memory is short, and it has not become short since the first call. Bytes that it has come to
        keep since the last iteration are in no peak yet, and are added to it."""
        if self.is_shrunk:
            return False
        device = self._addresses.device
        gpu = gpu_module(device.type)
        if gpu is None:
            return True
        stats = self._statistics()
        if stats is None:
            return False
        if not stats:  # The script has not used CUDA.
            return True
        shortages = _shortages_in(stats)
        if self._shortages is None:
            self._shortages = shortages
        if self._kept_bytes is None:
            self._kept_bytes = stats["allocated_bytes"]["all"]["current"]
        if self._kept_before_bytes is not None:
            more_bytes += max(0, self._kept_bytes - self._kept_before_bytes)
        free_bytes, _ = gpu.mem_get_info(device)
        peak_bytes = max(self._peak_bytes, stats["allocated_bytes"]["all"]["peak"])
        self._peak_bytes = peak_bytes
        room_bytes = free_bytes + stats["reserved_bytes"]["all"]["current"] - peak_bytes
        is_ample = room_bytes >= peak_bytes // 8 + more_bytes
        return bool(is_ample and shortages == self._shortages)

    def has_become_short(self) -> bool:
        """Whether memory has been short since the first call of has_headroom."""
        stats = self._statistics()
        return stats is not None and bool(stats) and _shortages_in(stats) != self._shortages

    def _statistics(self) -> dict[str, Any] | None:
        """Statistics of torch's allocator; None: it counts nothing, as a pluggable one (RMM's)."""
        gpu = gpu_module(self._addresses.device.type)
        if gpu is None:
            return None
        try:
            stats: dict[str, Any] = gpu.memory_stats_as_nested_dict(self._addresses.device)
        except RuntimeError:
            return None
        return stats

    def end_iteration(self) -> None:
        """Grows the device share again, into memory that whole iterations have left free."""
        if self._kept_bytes is not None:
            self._kept_before_bytes, self._kept_bytes = self._kept_bytes, None
        gpu = gpu_module(self._addresses.device.type)
        if self._slots == self._share_slots or gpu is None:
            return
        self._iterations += 1
        if self._iterations < self._patience:
            return
        chunk_bytes = self._addresses.chunk_bytes
        free_bytes, _ = gpu.mem_get_info(self._addresses.device)
        if self._limit is not None:
            free_bytes = min(free_bytes, self._limit.left_on_device_bytes())
        more = (free_bytes - self._slack_bytes) // chunk_bytes
        more = min(more, self._share_slots - self._slots)
        if more <= 0:
            return
        try:
            self._memory.client.resize((self._slots + more) * chunk_bytes, _TIMEOUT_MS)
        except ResourceExhausted:  # Another job has the slots now.
            self._iterations = 0
            return
        self._slots += more
        self._limit_allocator()
        self._returned = True
        self._memory.ledger.refresh()

    def _give_back(self, wanted_bytes: int) -> None:
        chunk_bytes = self._addresses.chunk_bytes
        # Other jobs may have made the share smaller than this process did.
        slots = min(self._slots, self._memory.client.stats().slots)
        fewer = max(-(-wanted_bytes // chunk_bytes), slots // 8, 1)
        self._slots = max(self._min_slots, slots - fewer)
        # These leases only make later accesses fast, and they pin chunks that are to be evicted.
        self._memory.ledger.release_all()
        # If another session's leases pin some slots, what was freed may still be enough: the next
        # attempt of `retry` shows it.
        with contextlib.suppress(DeadlineExceeded):
            self._memory.client.resize(self._slots * chunk_bytes, _TIMEOUT_MS)
        self._memory.ledger.refresh()
        self._limit_allocator()
        if (gpu := gpu_module(self._addresses.device.type)) is not None:
            gpu.empty_cache()

    def _limit_allocator(self) -> None:
        if self._limit is not None:
            self._limit.limit_allocator()


def _shortages_in(stats: dict[str, Any]) -> int:
    return int(stats["num_ooms"] + stats["num_alloc_retries"])


def is_shortage(error: RuntimeError) -> bool:
    """Whether an operation failed because too little device memory was free."""
    return isinstance(error, torch.OutOfMemoryError) or is_shortage_of_a_library(error)


def is_shortage_of_a_library(error: RuntimeError) -> bool:
    """Whether it was memory that torch's allocator does not allocate."""
    if isinstance(error, torch.OutOfMemoryError | MemtideError):
        return False
    return _LIBRARY_IS_SHORT.search(str(error)) is not None


def _asked_bytes(error: RuntimeError) -> int:
    """The bytes that CUDA's allocator reports to have tried to allocate; 0: it reports none."""
    match = _ALLOCATION_SIZE.search(str(error))
    return parse_size(match[1] + match[2]) if match else 0
