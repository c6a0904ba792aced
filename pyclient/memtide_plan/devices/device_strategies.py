"""A plan of devices: each strategy of using them, beside a bound, and the choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from memtide._util.sizes import format_size


@dataclass(frozen=True, kw_only=True)
class DeviceStrategy:
    """One strategy by which a machine's devices train a model together."""

    name: str
    detail: str  # How, in a few words.
    fits: bool
    limit: str = ""  # Why it does not fit, in a sentence.
    step_s: float | None = None  # None where it does not fit.
    device_bytes: float | None = None  # The most that one device needs. None: not known.
    host_bytes: float = 0.0  # For states and activations of all devices, as drive_bytes.
    drive_bytes: float = 0.0
    exchange_s: float = 0.0  # The part in which links between devices work; it may overlap.
    # False: gradients are those of older weights, so that losses are not those of one device.
    same_losses: bool = True


def passes(micro_batches: int, samples: int, *, recomputed: bool) -> str:
    """How a step is divided, for a strategy's detail."""
    count = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
    return f"{count} of {samples}{', recomputed' if recomputed else ''}"


@dataclass(frozen=True, kw_only=True)
class DevicesPlan:
    """All strategies, the fastest first; those that do not fit come last."""

    devices: int
    strategies: tuple[DeviceStrategy, ...]
    # The fastest that fits and has the same losses as one device. None: none fits.
    choice: DeviceStrategy | None
    # No strategy is faster: all compute of a step, divided among devices without a rest.
    bound_s: float

    def as_json(self) -> dict[str, Any]:
        """The plan in values that JSON has."""
        return {
            "devices": self.devices,
            "bound_s": self.bound_s,
            "choice": None if self.choice is None else self.choice.name,
            "ways": [asdict(strategy) for strategy in self.strategies],
        }

    def lines(self) -> list[str]:
        """The plan as text, a strategy in a line."""
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices"
        lines = [f"{devices}; compute divided among them: {self.bound_s:.3g} s a step"]
        for strategy in self.strategies:
            if strategy.step_s is None:
                lines.append(f"  {strategy.name}: {strategy.limit}")
                continue
            held = (
                ""
                if strategy.device_bytes is None
                else f", {format_size(strategy.device_bytes)} a device"
            )
            held += (
                f", {format_size(strategy.host_bytes)} of the host" if strategy.host_bytes else ""
            )
            held += (
                f", {format_size(strategy.drive_bytes)} of drives" if strategy.drive_bytes else ""
            )
            mark = " <- chosen" if strategy is self.choice else ""
            other = "" if strategy.same_losses else ", other losses"
            lines.append(
                f"  {strategy.name}: {strategy.step_s:.3g} s{held}{other} ({strategy.detail}){mark}"
            )
        return lines
