"""What the phases of a step take in systems that stream states by fixed rules.

In each phase the device computes while links and drives, which read and write at once, move what
it needs, so that the slowest of them decides. Collectives are kernels on the device's own
multiprocessors, and take as long besides. All is for one device; drives and the host's memory are
shared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memtide._plan.answer import Busy
from memtide._plan.estimate.question import step_bytes
from memtide._plan.estimate.ways import Way
from memtide._plan.estimate.work import Rates, Work
from memtide._plan.machine import Machine
from memtide._plan.model import Model
from memtide._plan.models.described import element_bytes
from memtide._plan.training import Training


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds in which each part of the machine works in a phase."""

    compute: float = 0.0
    to_device: float = 0.0
    from_device: float = 0.0
    drive_read: float = 0.0
    drive_written: float = 0.0
    exchange: float = 0.0
    optimizer: float = 0.0

    def seconds(self) -> float:
        """What the phase takes."""
        device = self.compute + self.exchange
        return float(max(device, *vars(self).values()))

    def filling_s(self, groups: int) -> float:
        """What the phase takes besides where its stages work on this number of groups, one after
        another: the slowest waits for the first group, and the others have the last one after it.
        """
        stages = (self.compute, self.drive_read, self.optimizer, self.drive_written)
        return (sum(stages) - max(stages)) / groups

    def with_(self, other: Part) -> Part:
        """Both at once."""
        return Part(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Phases:
    """One step."""

    forward: Part
    backward: Part
    step: Part
    recompute_s: float  # For one micro-batch, a part of `backward`.
    drive_bytes_written: float  # By one step.
    accumulation: int
    step_in_backward: bool
    # A step in the backward pass takes this number of groups of parameters, each whole.
    groups: int | None = None

    def seconds(self) -> float:
        """All phases."""
        passes = self.forward.seconds() + self.backward.seconds()
        if not self.step_in_backward:
            return self.accumulation * passes + self.step.seconds()
        backward = self.backward.with_(self.step)
        filling_s = backward.filling_s(self.groups) if self.groups else 0.0
        last_s = self.forward.seconds() + backward.seconds() + filling_s
        return (self.accumulation - 1) * passes + last_s

    def busy(self) -> Busy:
        """By part of the machine."""

        def total(name: str) -> float:
            passes = getattr(self.forward, name) + getattr(self.backward, name)
            return float(self.accumulation * passes + getattr(self.step, name))

        return Busy(
            compute=total("compute"),
            recompute=self.accumulation * self.recompute_s,
            to_device=total("to_device"),
            from_device=total("from_device"),
            drive=total("drive_read") + total("drive_written"),
            optimizer=total("optimizer"),
            exchange=total("exchange"),
            waits=max(0.0, self.seconds() - total("compute")),
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What phases are made for."""

    model: Model
    training: Training
    machine: Machine
    way: Way
    works: Sequence[Work]
    rates: Rates
    accumulation: int

    def shares(self) -> int:
        """In how many parts states are divided."""
        return self.machine.devices if self.way.sharded else 1


def phases(setting: Setting, *, moved: float, recomputed: float, to_drive: float) -> Phases:
    """The phases if these shares of what blocks save are moved and computed again, from 0 to 1;
    `to_drive` is the share of the moved bytes that goes on to drives."""
    works, machine, way = setting.works, setting.machine, setting.way
    saved = moved_bytes(setting, moved)
    again = recomputed * sum(
        work.block.count * (way.forwards_again * work.forward_s or work.recompute_s)
        for work in works
        if work.block.recomputable
    )
    weights = _weights(setting)
    swapped = to_drive * saved * machine.devices
    drive = machine.drive
    forward = weights.with_(
        Part(
            compute=sum(work.block.count * work.forward_s for work in works),
            from_device=saved / machine.from_device_bytes_per_s,
            drive_written=swapped / drive.write_bytes_per_s if drive else 0.0,
        )
    )
    for _ in range(1, way.forwards_again):
        weights = weights.with_(_weights(setting))
    backward = weights.with_(_gradients(setting)).with_(
        Part(
            compute=sum(work.block.count * work.backward_s for work in works) + again,
            to_device=saved / machine.to_device_bytes_per_s,
            drive_read=swapped / drive.read_bytes_per_s if drive else 0.0,
        )
    )
    trained = setting.model.trained_parameters()
    written = way.drive_gradients * setting.accumulation + way.drive_written
    return Phases(
        forward=forward,
        backward=backward,
        step=_step(setting),
        recompute_s=again,
        drive_bytes_written=trained * written + swapped * setting.accumulation,
        accumulation=setting.accumulation,
        step_in_backward=way.step_in_backward,
        groups=math.ceil(trained / way.group) if way.group is not None else None,
    )


def moved_bytes(setting: Setting, moved: float) -> float:
    """What leaves the device in one micro-batch: a share of what blocks save and, where inputs are
    on the host, what the other ones were given."""
    saved = sum(work.block.count * work.saved_bytes() for work in setting.works)
    inputs = sum(work.block.count * work.input_bytes for work in setting.works)
    moves = setting.way.in_pieces or setting.way.moves_inputs
    return moved * saved + ((1 - moved) * inputs if moves else 0.0)


def _weights(setting: Setting) -> Part:
    """Weights for one pass over all blocks: each device's share comes from its place, the other
    shares from other devices."""
    machine, way, shares = setting.machine, setting.way, setting.shares()
    training = setting.training
    # A float32 master is gathered in the type that computes.
    each = min(training.states.weight, element_bytes(training.compute_type))
    size = setting.model.parameters() * each
    brought = size / shares if way.weights != "device" else 0.0
    others = size - size / shares
    between = machine.between_devices_bytes_per_s
    if between is None:
        brought += others
    drive = 0.0
    if way.weights == "drive" and machine.drive is not None:
        drive = size / machine.drive.read_bytes_per_s
    return Part(
        to_device=brought / machine.to_device_bytes_per_s,
        drive_read=drive,
        exchange=others / between if between is not None else 0.0,
    )


def _gradients(setting: Setting) -> Part:
    """Gradients of one backward pass: they are summed over devices, and leave for their place."""
    machine, way, training = setting.machine, setting.way, setting.training
    devices = machine.devices
    trained = setting.model.trained_parameters()
    size = trained * training.states.gradient
    # A ring sums in as many bytes as all-gathering takes, and replicas gather the sums besides.
    summed = size * (devices - 1) / devices * (1 if way.sharded else 2)
    between = machine.between_devices_bytes_per_s
    leaving = size / setting.shares() if way.gradients != "device" else 0.0
    if between is None:
        leaving += summed
    drive = machine.drive
    return Part(
        from_device=leaving / machine.from_device_bytes_per_s,
        drive_written=trained * way.drive_gradients / drive.write_bytes_per_s if drive else 0.0,
        exchange=summed / between if between is not None else 0.0,
    )


def _step(setting: Setting) -> Part:
    machine, way, training = setting.machine, setting.way, setting.training
    trained = setting.model.trained_parameters()
    if way.step == "device":
        passed = trained * step_bytes(training) / setting.shares()
        return Part(optimizer=passed / setting.rates.memory_bytes_per_s)
    drive = machine.drive
    # Host memory has the traffic of drives, too, and what casts and sums of gradients pass of it.
    update = way.update_bytes
    if update is None:
        gathered = 2 * training.states.gradient * machine.devices
        update = step_bytes(training) + way.host_buffers + gathered
    passed = trained * (update + way.drive_read + way.drive_written)
    cast = trained * way.cast_in_step / machine.to_device_bytes_per_s
    # New weights go back to where the next forward pass uses them.
    back = 0.0
    if way.weights == "device" and not way.cast_in_step:
        back = trained * training.states.weight
    return Part(
        optimizer=passed / machine.host_memory_bytes_per_s + cast,
        drive_read=trained * way.drive_read / drive.read_bytes_per_s if drive else 0.0,
        drive_written=trained * way.drive_written / drive.write_bytes_per_s if drive else 0.0,
        to_device=back / machine.to_device_bytes_per_s,
    )
