"""The time that the phases of a step take in systems that stream states by fixed rules.

In each phase the device computes while links and drives, which read and write at once, move what
it needs, so that the slowest of them decides. Collectives are kernels on the device's own
multiprocessors, and take as long besides. All is for one device; drives and the host's memory are
shared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memtide._plan_file.answer import Busy, Moved
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training

from memtide_plan.estimate.question import step_bytes
from memtide_plan.estimate.system_strategies import SystemStrategy
from memtide_plan.estimate.work import Rates, Work
from memtide_plan.models.described import element_bytes


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
        """The phase's time."""
        device = self.compute + self.exchange
        return float(max(device, *vars(self).values()))

    def filling_s(self, groups: int) -> float:
        """The phase's further time where its stages work on this number of groups, one after
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
    summed: Part  # The sums of gradients that the last backward pass has beside, of a whole step.
    step: Part
    recompute_s: float  # For one micro-batch, a part of `backward`.
    accumulation: int
    step_in_backward: bool
    # A step in the backward pass takes this number of groups of parameters, each whole.
    groups: int | None = None

    def seconds(self) -> float:
        """All phases."""
        last = self.backward.with_(self.summed)
        after_s = 0.0 if self.step_in_backward else self.step.seconds()
        if self.step_in_backward:
            last = last.with_(self.step)
            after_s = last.filling_s(self.groups) if self.groups else 0.0
        backward_s = (self.accumulation - 1) * self.backward.seconds() + last.seconds()
        return self.accumulation * self.forward.seconds() + backward_s + after_s

    def busy(self) -> Busy:
        """By part of the machine."""
        total = self._total
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

    def moved_bytes(self, machine: Machine) -> Moved:
        """The bytes that pass the links and drives of the machine whose phases these are."""
        drive = machine.drive
        return Moved(
            to_device=self._total("to_device") * machine.to_device_bytes_per_s,
            from_device=self._total("from_device") * machine.from_device_bytes_per_s,
            drive_read=self._total("drive_read") * drive.read_bytes_per_s if drive else 0.0,
            drive_written=self._total("drive_written") * drive.write_bytes_per_s if drive else 0.0,
        )

    def _total(self, name: str) -> float:
        passes = getattr(self.forward, name) + getattr(self.backward, name)
        once = getattr(self.summed, name) + getattr(self.step, name)
        return float(self.accumulation * passes + once)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The inputs from which phases are made."""

    model: Model
    training: Training
    machine: Machine
    strategy: SystemStrategy
    works: Sequence[Work]
    rates: Rates
    accumulation: int

    def shares(self, stage: int) -> int:
        """In how many parts the states are divided that ZeRO divides from this stage on."""
        return self.machine.devices if self.strategy.stage >= stage else 1


def phases(setting: Setting, *, moved: float, recomputed: float, to_drive: float) -> Phases:
    """The phases if these shares of what blocks save are moved and computed again, from 0 to 1;
    `to_drive` is the share of the moved bytes that goes on to drives."""
    works, machine, strategy = setting.works, setting.machine, setting.strategy
    saved = moved_bytes(setting, moved)
    again = recomputed * sum(
        work.block.count * (strategy.forwards_again * work.forward_s or work.recompute_s)
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
    for _ in range(1, strategy.forwards_again):
        weights = weights.with_(_weights(setting))
    # Whole gradients on the device are summed once, when all micro-batches have added theirs.
    is_whole = strategy.gradients == "device" and strategy.stage < 2
    summed = _summed(setting)
    each, once = (Part(), summed) if is_whole else (summed, Part())
    backward = (
        weights.with_(each)
        .with_(_leaving(setting))
        .with_(
            Part(
                compute=sum(work.block.count * work.backward_s for work in works) + again,
                to_device=saved / machine.to_device_bytes_per_s,
                drive_read=swapped / drive.read_bytes_per_s if drive else 0.0,
            )
        )
    )
    return Phases(
        forward=forward,
        backward=backward,
        summed=once,
        step=_step(setting),
        recompute_s=again,
        accumulation=setting.accumulation,
        step_in_backward=strategy.step_in_backward,
        groups=_groups(setting),
    )


def _groups(setting: Setting) -> int | None:
    if setting.strategy.group is None:
        return None
    return math.ceil(setting.model.trained_parameters() / setting.strategy.group)


def moved_bytes(setting: Setting, moved: float) -> float:
    """The bytes that leave the device in one micro-batch: a share of the blocks' saved tensors and,
    where inputs are on the host, the inputs of the other blocks."""
    saved = sum(work.block.count * work.saved_bytes() for work in setting.works)
    inputs = sum(work.block.count * work.input_bytes for work in setting.works)
    moves = setting.strategy.in_pieces or setting.strategy.moves_inputs
    return moved * saved + ((1 - moved) * inputs if moves else 0.0)


def _weights(setting: Setting) -> Part:
    """Weights for one pass over all blocks: each device's share comes from its place, the other
    shares from other devices."""
    machine, strategy, shares = setting.machine, setting.strategy, setting.shares(3)
    training = setting.training
    # A float32 master is gathered in the type that computes.
    each = min(training.states.weight, element_bytes(training.compute_type))
    size = setting.model.parameters() * each
    brought = size / shares if strategy.weights != "device" else 0.0
    drive = machine.drive if strategy.weights == "drive" else None
    return _gathered(machine, size - size / shares).with_(
        Part(
            to_device=brought / machine.to_device_bytes_per_s,
            drive_read=size / drive.read_bytes_per_s if drive else 0.0,
        )
    )


def _gathered(machine: Machine, size: float) -> Part:
    """A device receives these bytes from others: by the links between them, or by the host."""
    if machine.between_devices_bytes_per_s is None:
        return Part(to_device=size / machine.to_device_bytes_per_s)
    return Part(exchange=size / machine.between_devices_bytes_per_s)


def _summed(setting: Setting) -> Part:
    """Gradients are summed over devices."""
    machine, training = setting.machine, setting.training
    size = setting.model.trained_parameters() * training.states.gradient
    # A ring sums in as many bytes as all-gathering takes, and replicas gather the sums besides.
    size *= (1 - 1 / machine.devices) * (1 if setting.strategy.stage else 2)
    if machine.between_devices_bytes_per_s is None:
        return Part(from_device=size / machine.from_device_bytes_per_s)
    return Part(exchange=size / machine.between_devices_bytes_per_s)


def _leaving(setting: Setting) -> Part:
    """Gradients of one backward pass leave for their place."""
    machine, strategy = setting.machine, setting.strategy
    if strategy.gradients == "device":
        return Part()
    trained, drive = setting.model.trained_parameters(), machine.drive
    size = trained * setting.training.states.gradient / setting.shares(2)
    return Part(
        from_device=size / machine.from_device_bytes_per_s,
        drive_written=(
            trained * strategy.drive_gradients / drive.write_bytes_per_s if drive else 0.0
        ),
    )


def _step(setting: Setting) -> Part:
    machine, strategy, states = setting.machine, setting.strategy, setting.training.states
    trained, shares = setting.model.trained_parameters(), setting.shares(1)
    # New weights go to where the next forward pass uses them.
    new = trained * states.weight
    gathered = _gathered(machine, 0.0 if strategy.stage == 3 else new - new / shares)
    passed = step_bytes(setting.training)
    if strategy.step == "device":
        own = Part(optimizer=trained * passed / shares / setting.rates.memory_bytes_per_s)
        return gathered.with_(own)
    drive, (read, written) = machine.drive, _updated_bytes(setting)
    # Host memory has the traffic of drives, too, and what casts and sums of gradients pass of it.
    update = strategy.update_bytes
    if update is None:
        update = passed + strategy.host_buffers + 2 * states.gradient * machine.devices
    cast = trained * strategy.cast_in_step / shares / machine.to_device_bytes_per_s
    back = new / shares if strategy.weights == "device" and not strategy.cast_in_step else 0.0
    return gathered.with_(
        Part(
            optimizer=trained * (update + read + written) / machine.host_memory_bytes_per_s + cast,
            drive_read=trained * read / drive.read_bytes_per_s if drive else 0.0,
            drive_written=trained * written / drive.write_bytes_per_s if drive else 0.0,
            to_device=back / machine.to_device_bytes_per_s,
        )
    )


def _updated_bytes(setting: Setting) -> tuple[float, float]:
    """The bytes that the update reads from and writes to drives for each trained parameter."""
    strategy, states = setting.strategy, setting.training.states
    size = states.optimizer if strategy.optimizer == "drive" else 0.0
    size += states.weight if strategy.weights == "drive" else 0.0
    return size + strategy.drive_gradients, size
