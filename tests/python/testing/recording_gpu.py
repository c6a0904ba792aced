"""A stand-in for torch.cuda, where the device of chunks is torch's CPU (fake_client.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RecordingGpu:
    """Has the functions of memtide._util.devices.GpuModule, and records their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.free_bytes = self.total_bytes = 0
        self.fraction = 1.0  # The part that torch's allocator may use.
        self.allocated_bytes = 0
        # Called while `synchronize` waits.
        self.while_waiting: Callable[[], None] = lambda: None

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def synchronize(self, device: Any = None) -> None:
        self.calls.append("synchronize")
        self.while_waiting()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self.calls.append("mem_get_info")
        return self.free_bytes, self.total_bytes

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        self.calls.append("set_per_process_memory_fraction")
        self.fraction = fraction

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        self.calls.append("memory_stats_as_nested_dict")
        allocated = {"current": self.allocated_bytes, "peak": self.allocated_bytes}
        return {
            "num_ooms": 0,
            "num_alloc_retries": 0,
            "allocated_bytes": {"all": allocated},
            "reserved_bytes": {"all": {"current": self.allocated_bytes}},
        }
