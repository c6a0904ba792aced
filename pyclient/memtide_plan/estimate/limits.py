"""Whether needs are met, how sure an answer is, and how long a drive lives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from memtide._plan_file.machine import Machine
from memtide._util.sizes import format_size

from memtide_plan.calibration import constant

_SECONDS_A_YEAR = 365.25 * 86400
# Where each resource alone would do.
NO_ROOM = (
    "It does not fit: states and activations together have no room in the memory of the device, "
    "the host and drives."
)


@dataclass(frozen=True)
class Need:
    """Bytes that a training needs of one resource, and those that it may have."""

    resource: str  # As in "device memory".
    needed: float
    available: float


def limit_of(needs: Iterable[Need]) -> str | None:
    """The first need that is not met, as a sentence; None: all are."""
    for need in needs:
        if need.needed > need.available:
            return (
                f"It does not fit: {need.resource} of at least {format_size(need.needed)} would be "
                f"needed for training, and {format_size(need.available)} can be had."
            )
    return None


def tightest(needs: Iterable[Need]) -> str:
    """The need that would be hit first if all grew alike, as a sentence."""
    need = max(needs, key=lambda need: need.needed / max(1.0, need.available))
    share = need.needed / max(1.0, need.available)
    return f"The first limit is {need.resource}, of which it needs at least {share:.0%}."


def interval(step_s: float, machine: Machine, *, by: str) -> tuple[float, float]:
    """The times between which a step's lies, most likely: the machine's rates and the model of
    what is done with them are both off, and neither knows of the other. `by`: which model, that of
    the "engine" or that of "phases"."""
    error = math.hypot(machine.uncertainty, constant(f"simulator_error.{by}"))
    return step_s / (1 + error), step_s * (1 + error)


def years(bytes_written: float, step_s: float, machine: Machine) -> float | None:
    """How long the drive lives if steps write so much without a pause. None: they write nothing,
    or its maker does not say."""
    drive = machine.drive
    if drive is None or drive.endurance_bytes is None or bytes_written <= 0:
        return None
    return drive.endurance_bytes / (bytes_written / step_s) / _SECONDS_A_YEAR
