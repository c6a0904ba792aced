"""A machine of a plan. The catalogue (memtide_plan/data/machines.json) has such values with
their sources; `memtide doctor --measure` measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU."""

    name: str
    memory_bytes: float
    # Bytes of it that chunks and activations may use. None: all that CUDA and the allocator do not
    # need. 0: there is no device, and the processor computes in host memory.
    pool_bytes: float | None = None
    # The peak of dense products of matrices, by type: "bfloat16", "float32", "tf32".
    flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    # The share of the peaks above that a well-written training loop reaches. A measured machine has
    # 1.0, and measured rates in place of the peaks.
    reached_flop: float = 1.0
    reached_memory: float = 1.0
    # Its multiprocessors, each of which computes one tile of a product at a time. None: not known.
    multiprocessors: int | None = None
    # The speed here of attention kernels that were written for the generation before, divided by
    # their speed there, both as shares of the speed of products of matrices.
    reached_by_older: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Drive:
    """All drives of a machine together, as one."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    size_bytes: float
    # Bytes that may be written in its life, by its maker. None: not known.
    endurance_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine: equal devices, one host memory, and drives. Rates are in bytes a second; those
    of links are each device's own while all devices use theirs."""

    name: str
    device: Device
    devices: int = 1
    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    # Both directions together, at most. None: the sum of both.
    both_ways_bytes_per_s: float | None = None
    # Between two devices, for collectives. None: through the host.
    between_devices_bytes_per_s: float | None = None
    host_memory_bytes: float
    # Bytes of host memory that the processor reads and writes in a second of an optimizer's step.
    host_memory_bytes_per_s: float
    drive: Drive | None = None
    price: float | None = None  # In US dollars, for --buy. None: not listed.
    # The greatest relative error of its rates: 0.02 where they were measured just before; more
    # where they are from specification sheets. The answer's interval follows from it.
    uncertainty: float = 0.1

    def exchange_bytes_per_s(self) -> float:
        """The rate at which a device sends to others, and receives from them, while it does both:
        on the links between devices, and through the host where there are none."""
        if self.between_devices_bytes_per_s:
            return self.between_devices_bytes_per_s
        rates = [self.to_device_bytes_per_s, self.from_device_bytes_per_s]
        if self.both_ways_bytes_per_s is not None:
            rates.append(self.both_ways_bytes_per_s / 2)
        return min(rates)
