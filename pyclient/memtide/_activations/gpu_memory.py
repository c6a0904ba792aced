"""A GPU's memory that a process and its job's share have, by torch's allocator and CUDA."""

from __future__ import annotations

from typing import Any

from memtide._capi.client import Client
from memtide._telemetry import process_memory
from memtide._util.devices import GpuModule, gpu_module, type_name


class GpuMemory:
    """The memory of a client's device. Before the script uses the GPU, which no call here begins,
    all is zero but the share."""

    def __init__(self, client: Client, limit_bytes: int | None) -> None:
        """`limit_bytes`: the limit on all of it; None: no limit is set."""
        self._client = client
        self._limit_bytes = limit_bytes
        self.contexts_bytes = 0  # The driver's, of this process and the daemon.

    @property
    def is_used(self) -> bool:
        """Whether the script has used the GPU."""
        return bool(self._allocator_stats())

    def share_bytes(self) -> int:
        """The job's share."""
        return self._client.stats().slots * self._client.properties.chunk_bytes

    def made_bytes(self) -> int:
        """The part of the share that exists, at most: memory is made as chunks come."""
        gpu, number = self._gpu_and_number()
        stats = self._allocator_stats()
        if gpu is None or not stats:
            return 0
        free_bytes, total_bytes = gpu.mem_get_info(number)
        return min(self.share_bytes(), total_bytes - free_bytes - _reserved_bytes(stats))

    def own_bytes(self) -> int:
        """Bytes that torch's allocator has allocated, kept activations among them. At its first use
        also limits the allocator, which raises an error at its limit; chunks make room then
        (_memory/device_oom.py)."""
        gpu, number = self._gpu_and_number()
        stats = self._allocator_stats()
        if gpu is None or not stats:
            return 0
        if not self.contexts_bytes:
            free_bytes, total_bytes = gpu.mem_get_info(number)
            used_bytes = total_bytes - free_bytes - _reserved_bytes(stats)
            # Other programs' memory looks alike.
            self.contexts_bytes = max(1, used_bytes - self.share_bytes())
            self.limit_allocator()
        return _allocated_bytes(stats)

    def left_bytes(self, sharing: int) -> int:
        """Bytes that the process may take beside what it has: its part of what is free, where as
        many processes share that, and what the allocator holds without a tensor in it."""
        gpu, number = self._gpu_and_number()
        stats = self._allocator_stats()
        if gpu is None or not stats:
            return 0
        free_bytes, _ = gpu.mem_get_info(number)
        return free_bytes // sharing + _reserved_bytes(stats) - _allocated_bytes(stats)

    def limit_allocator(self) -> None:
        """Limits torch's allocator to what the share leaves of the limit, if one is set. Called
        whenever the share changes."""
        gpu, number = self._gpu_and_number()
        if gpu is None or not self.contexts_bytes or self._limit_bytes is None:
            return
        _, total_bytes = gpu.mem_get_info(number)
        fraction = min(1.0, self._beside_share_bytes(self._limit_bytes) / total_bytes)
        gpu.set_per_process_memory_fraction(fraction, number)

    def left_on_device_bytes(self) -> int:
        """The part of the limit that the allocator leaves to the share. REQUIRES: one is set."""
        assert self._limit_bytes is not None
        stats = self._allocator_stats()
        reserved_bytes = _reserved_bytes(stats) if stats else 0
        return self._beside_share_bytes(self._limit_bytes) - reserved_bytes

    def _beside_share_bytes(self, limit_bytes: int) -> int:
        return max(0, limit_bytes - self.contexts_bytes - self.share_bytes())

    def _allocator_stats(self) -> dict[str, Any]:
        return process_memory.allocator_stats(self._client.properties.dl_device)

    def _gpu_and_number(self) -> tuple[GpuModule | None, int]:
        """Torch's module of the device, and the device's number. A budget is made before torch is
        imported, which may bring its type of device only then."""
        device = self._client.properties.dl_device
        return gpu_module(type_name(device)), device[1]


def _allocated_bytes(stats: dict[str, Any]) -> int:
    return int(stats["allocated_bytes"]["all"]["current"])


def _reserved_bytes(stats: dict[str, Any]) -> int:
    return int(stats["reserved_bytes"]["all"]["current"])
