"""The machine that this is, as a plan sees it, with what was measured for it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from memtide._plan_file.machine import Device, Drive, Machine
from memtide._telemetry.process_memory import available_host_bytes
from memtide._util.sizes import format_size

from memtide_plan.ask.units import format_rate
from memtide_plan.measure import device, drive, host
from memtide_plan.measure.drive import MeasuredDrive
from memtide_plan.measure.repeated import Rate

# Seconds for each part; together they are well under 20, import of torch included.
_COPY_S, _OPTIMIZER_S, _PRODUCTS_S, _LINK_S, _DRIVE_S = 1.0, 2.0, 2.5, 1.5, 6.0
# Rates of one machine differ by as much from one minute to the next, even where trials do not.
_LEAST_UNCERTAINTY = 0.02

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A line of the table: what was measured, the result, and how long it took."""

    subject: str
    result: str
    took_s: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A machine, and how its numbers were found."""

    machine: Machine
    measurements: tuple[Measurement, ...]


def measure(directory: Path, say: Callable[[str], None] = lambda _: None) -> Measured:
    """Measures this machine. `directory`: where SSD pools would be. `say` is called with the name
    of each part before it is measured."""
    found = device.find()
    say("host memory")
    copies, steps = host.copy_rate(_COPY_S), host.optimizer_rate(_OPTIMIZER_S)
    say("the device")
    products = device.product_rates(found, _PRODUCTS_S)
    memory = copies if found.is_emulated else device.memory_rate(found, _COPY_S)
    say("its link")
    link = device.link_rates(found, _LINK_S)
    say("the drive")
    measured_drive = drive.measure(directory, _DRIVE_S)
    rates = [steps, *products.values(), memory, link.to_device, link.from_device]
    machine = Machine(
        name=platform.node() or "this machine",
        device=Device(
            name=found.name,
            memory_bytes=found.memory_bytes,
            pool_bytes=0 if found.is_emulated else None,
            flop_per_s={name: rate.per_s for name, rate in products.items()},
            memory_bytes_per_s=memory.per_s,
        ),
        to_device_bytes_per_s=link.to_device.per_s,
        from_device_bytes_per_s=link.from_device.per_s,
        both_ways_bytes_per_s=link.both_ways.per_s,
        host_memory_bytes=available_host_bytes() // 2**20 * 2**20,
        host_memory_bytes_per_s=steps.per_s,
        drive=_drive_of(measured_drive),
        uncertainty=max(_LEAST_UNCERTAINTY, *(rate.spread for rate in rates)),
    )
    lines = [
        _line("copies of host memory, all cores", copies),
        _line("AdamW's steps in host memory", steps),
        *(
            Measurement(
                subject=f"products of {name} matrices, {found.name}",
                result=f"{rate.per_s / 1e12:.3g} Tflop/s",
                took_s=rate.took_s,
            )
            for name, rate in products.items()
        ),
        _line("host to device", link.to_device),
        _line("device to host", link.from_device),
        _line("both at once", link.both_ways),
        *_drive_lines(measured_drive, directory),
    ]
    return Measured(machine=machine, measurements=tuple(lines))


def _drive_of(measured: MeasuredDrive | str) -> Drive | None:
    if isinstance(measured, str):
        return None
    return Drive(
        read_bytes_per_s=measured.read.per_s,
        write_bytes_per_s=measured.write.per_s,
        size_bytes=measured.free_bytes,
    )


def _drive_lines(measured: MeasuredDrive | str, directory: Path) -> list[Measurement]:
    if isinstance(measured, str):
        return [Measurement(subject="drive", result=f"not measured: {measured}", took_s=0.0)]
    size = format_size(measured.written_bytes)
    return [
        _line(f"drive of {directory}, {size} written", measured.write),
        _line(f"drive of {directory}, {size} read", measured.read),
    ]


def _line(subject: str, rate: Rate) -> Measurement:
    return Measurement(subject=subject, result=format_rate(rate.per_s), took_s=rate.took_s)
