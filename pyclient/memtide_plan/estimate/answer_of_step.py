"""The answer that follows from what a step needs and takes, whichever model says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memtide._plan_file.answer import Answer, Busy, Choice, Moved
from memtide._plan_file.machine import Machine
from memtide._plan_file.training import Training

from memtide_plan.estimate.limits import interval, years
from memtide_plan.estimate.pools import Pools, device_pool, host_reserve


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that fits."""

    seconds: float
    by: str  # The model that says it, as interval() calls it.
    moved_bytes: Moved
    busy: Busy
    choice: Choice


def answer_of(
    training: Training, machine: Machine, *, limit: str, least_pools: Pools, step: Step | None
) -> Answer:
    """`limit`: why no step fits, or what would be hit first. `least_pools`: those of a device and
    of the host with which one would fit. None: none does."""
    reserve = max(0.0, machine.device.memory_bytes - device_pool(machine))
    refused = Answer(
        fits=False,
        limit=limit,
        least_device_bytes=round(least_pools.device + reserve),
        least_host_bytes=round(least_pools.host + host_reserve(machine)),
    )
    if step is None:
        return refused
    low_s, high_s = interval(step.seconds, machine, by=step.by)
    return replace(
        refused,
        fits=True,
        step_s=step.seconds,
        low_s=low_s,
        high_s=high_s,
        tokens_per_s=training.tokens() / step.seconds,
        busy=step.busy,
        choice=step.choice,
        moved_bytes=step.moved_bytes,
        drive_years=years(step.moved_bytes.drive_written, step.seconds, machine),
    )


def link_seconds(moved: Moved, machine: Machine) -> tuple[float, float, float]:
    """Seconds in which a device's link carries this to it and from it, and in which drives work."""
    drive = machine.drive
    return (
        moved.to_device / machine.to_device_bytes_per_s,
        moved.from_device / machine.from_device_bytes_per_s,
        (
            moved.drive_read / drive.read_bytes_per_s
            + moved.drive_written / drive.write_bytes_per_s
            if drive is not None
            else 0.0
        ),
    )
