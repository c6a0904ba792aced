"""What a plan of a graph says, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memtide._util.sizes import format_size

# The operators of a device that text names.
_MOST_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class DeviceLoad:
    """What one device has, and its replicas if there are any: then all but its memory and seconds
    is of one micro-batch, wherever that is computed."""

    operators: tuple[str, ...]  # In the order in which they run.
    compute_s: float
    in_bytes: float  # From other devices.
    out_bytes: float
    memory_bytes: float  # That of each device.
    # With links, an average of all micro-batches; for latency, until its last operator has ended.
    seconds: float
    replicas: int = 1  # Devices that have these operators.
    summed_bytes: float = 0.0  # Gradients that its replicas sum.


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """A partition, and the time that it is predicted to take."""

    objective: str  # "throughput" or "latency".
    # For a micro-batch in a pipeline that never runs empty; or one pass from its begin to its end.
    seconds: float
    # No partition takes less: an even share, the heaviest operator, for latency the longest path;
    # and `seconds` itself where the search is exact.
    bound_s: float
    exact: bool
    method: str  # How it was found, in a few words.
    # Those that have operators, in the order of a pipeline; replicas are one entry.
    devices: tuple[DeviceLoad, ...]
    cut_bytes: float  # That cross between devices, each once for each device that receives it.

    def as_json(self) -> dict[str, Any]:
        """The plan in values that JSON has."""
        return {
            "objective": self.objective,
            "seconds": self.seconds,
            "bound_s": self.bound_s,
            "exact": self.exact,
            "method": self.method,
            "cut_bytes": self.cut_bytes,
            "devices": [
                {
                    "operators": list(device.operators),
                    "replicas": device.replicas,
                    "compute_s": device.compute_s,
                    "in_bytes": device.in_bytes,
                    "out_bytes": device.out_bytes,
                    "summed_bytes": device.summed_bytes,
                    "memory_bytes": device.memory_bytes,
                    "seconds": device.seconds,
                }
                for device in self.devices
            ],
        }

    def lines(self) -> list[str]:
        """The plan as text."""
        what = (
            f"{1 / self.seconds:.4g} micro-batches a second, {_time(self.seconds)} each"
            if self.objective == "throughput" and self.seconds > 0
            else f"{_time(self.seconds)} from begin to end"
        )
        above = self.seconds / self.bound_s - 1 if self.bound_s > 0 else 0.0
        found = "no partition is faster" if self.exact else f"{100 * above:.1f}% above the bound"
        lines = [
            f"{self.objective}: {what}; bound {_time(self.bound_s)}; {found} ({self.method})",
            f"cut: {format_size(self.cut_bytes)} between devices",
        ]
        number = 0
        for device in self.devices:
            lines.append(_line(number, device))
            number += device.replicas
        return lines


def _line(number: int, device: DeviceLoad) -> str:
    names = ", ".join(device.operators[:_MOST_NAMES])
    more = len(device.operators) - _MOST_NAMES
    who, summed, each = f"device {number}", "", ""
    if device.replicas > 1:
        who = f"devices {number} to {number + device.replicas - 1}, replicas"
        summed, each = f", sum {format_size(device.summed_bytes)}", " each"
    return (
        f"{who}: {_time(device.seconds)}, computes {_time(device.compute_s)}, "
        f"in {format_size(device.in_bytes)}, out {format_size(device.out_bytes)}{summed}, "
        f"memory {format_size(device.memory_bytes)}{each}: {names}"
        f"{f' and {more} more' if more > 0 else ''}"
    )


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.4g} {unit}"
    raise AssertionError
