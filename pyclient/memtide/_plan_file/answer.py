"""The answer of `memtide plan`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Bytes that a step moves: over the links of each device, and from and to the drives that all
    devices share. Seconds of links follow from them."""

    to_device: float = 0.0
    from_device: float = 0.0
    drive_read: float = 0.0
    drive_written: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Seconds of a step in which each part of the machine works. They overlap."""

    compute: float  # Forward and backward passes, recomputation included.
    recompute: float  # The part of `compute` that recomputation takes.
    to_device: float
    from_device: float
    drive: float
    optimizer: float
    exchange: float = 0.0  # Between devices.
    # Seconds in which the device computes nothing as it waits for any of the others.
    waits: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice of a plan, which `memtide run --plan` applies."""

    chunk_bytes: int
    micro_batch: int
    accumulation: int  # Micro-batches in a step of one device.
    ranks: int  # Processes, each with a device of its own.
    optimizer_on: str  # "host" or "device".
    device_pool_bytes: int  # For chunks and activations of one device.
    host_pool_bytes: int
    ssd_pool_bytes: int  # 0: no drive is needed.
    # By block, in the order of forward passes: "keep", "move" or "recompute".
    activations: tuple[str, ...] = field(default=())
    # Bytes of states that never leave the device.
    resident_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A plan for one model, one training and one machine."""

    fits: bool
    # Why it does not fit, or what would be hit first if all were larger, in a sentence.
    limit: str
    # The least with which the same training fits, the rest of the machine as it is.
    least_device_bytes: int
    least_host_bytes: int
    # All below is None where it does not fit.
    step_s: float | None = None
    low_s: float | None = None  # The interval in which a step's time lies, most likely.
    high_s: float | None = None
    tokens_per_s: float | None = None
    busy: Busy | None = None
    choice: Choice | None = None
    moved_bytes: Moved = Moved()
    drive_years: float | None = None  # At that rate, without a pause. None: nothing is written.
