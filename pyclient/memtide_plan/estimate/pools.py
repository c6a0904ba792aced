"""The memory of a machine that a training needs, and the memory that it may have.

Sizes are those of one device. A device has chunks, kept activations, and what one block's passes
need besides; what CUDA and the allocator need is not the training's. Host memory has the script
itself, and chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import States, Training

from memtide_plan.calibration import constant
from memtide_plan.estimate.work import Work

# The chunks that pass a pool beside those that one block uses: as many arrive and leave meanwhile.
_PASSING_CHUNKS = 4


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Bytes."""

    device: float  # For chunks and activations of one device.
    host: float  # For chunks of all devices.
    drive: float

    @classmethod
    def of(cls, machine: Machine) -> Pools:
        """The pools of a machine."""
        return cls(
            device=device_pool(machine),
            host=max(0.0, machine.host_memory_bytes - host_reserve(machine)),
            drive=machine.drive.size_bytes if machine.drive else 0.0,
        )


def device_pool(machine: Machine) -> float:
    """The memory of a device that chunks and activations may have."""
    if machine.device.pool_bytes is not None:
        return machine.device.pool_bytes
    return max(0.0, machine.device.memory_bytes - constant("device_reserve_bytes"))


def host_reserve(machine: Machine) -> float:
    """The host memory that the operating system and each device's process need."""
    return constant("host_reserve_bytes") * (1 + machine.devices)


def states_bytes(model: Model, states: States) -> float:
    """All states: weights of all parameters, the rest of trained ones."""
    trained = model.trained_parameters()
    return model.parameters() * states.weight + trained * (states.gradient + states.optimizer)


def shadow_bytes(model: Model, states: States) -> float:
    """Shadow chunks of a step in parts on the host: the new content of all that it changes."""
    return model.trained_parameters() * (states.weight + states.optimizer)


def transient_bytes(works: Sequence[Work]) -> float:
    """The bytes that the passes of the widest block hold beside saved tensors: gradients of
    activations."""
    return constant("transient_share") * max(work.saved_bytes() for work in works)


def least_device_bytes(works: Sequence[Work], training: Training, chunk_bytes: float) -> float:
    """The least pool of a device with which chunks can pass: one block's weights, gradients and
    activations, and what arrives meanwhile."""
    per_parameter = training.states.weight + training.states.gradient
    widest = max(work.block.parameters * per_parameter + work.saved_bytes() for work in works)
    return widest + transient_bytes(works) + _PASSING_CHUNKS * chunk_bytes
