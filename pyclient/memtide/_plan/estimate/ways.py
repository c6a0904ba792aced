"""How systems work: which states are where, what is done with activations, and what overlaps.

A way is a small set of choices, not of constants: its times follow from the machine's rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtide._plan.estimate.work import Rates
from memtide._plan.machine import Device
from memtide.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class Way:
    """The choices of one system. Places are "device", "host" or "drive"."""

    # Placement and activations are searched in the engine; the places below are then not used.
    planned: bool = False
    foreseen: bool = False  # All its transfers are known ahead; else they are the engine's own.
    weights: str = "device"
    gradients: str = "device"
    optimizer: str = "device"  # Where the optimizer's states are.
    step: str = "device"  # Where the optimizer computes.
    step_in_backward: bool = False
    # "balance": as many move as makes a step fastest, the others are computed again. None: they
    # are kept where they fit, else computed again. What a training says goes first.
    activations: str | None = None
    # A block's passes compute one sequence at a time, and what blocks hand on is on the host: the
    # device has one sequence's activations of one block.
    in_pieces: bool = False
    # Its attention is written for the device's generation, as FlashAttention 3 is for Hopper.
    tuned_attention: bool = False
    kernels: str | None = None  # The constant of what its kernels reach of others' rate.
    sharded: bool = False  # States are divided among devices, and weights gathered for each use.
    # Bytes that a step reads from and writes to the drive for each parameter, in its update, and
    # those of gradients that backward passes write.
    drive_read: float = 0.0
    drive_written: float = 0.0
    drive_gradients: float = 0.0
    host_buffers: float = 0.0  # Bytes of host memory for each parameter beside its states.

    def rates(self, device: Device, compute_type: str) -> Rates:
        """What it reaches on a device. InvalidArgument: no peak in this type is known."""
        return Rates.of(
            device, compute_type, tuned_attention=self.tuned_attention, kernels=self.kernels
        )


_WAYS = {
    "memtide": Way(planned=True),
    # Plans placement, moves and recomputation by a simulator; the step follows each gradient.
    "dataflow": Way(
        planned=True, foreseen=True, step="device", step_in_backward=True, tuned_attention=True
    ),
    "flextrain": Way(
        planned=True,
        foreseen=True,
        step="device",
        step_in_backward=True,
        tuned_attention=True,
        kernels="kernels.flextrain",
    ),
    # All is on the device, as plain torch has it; on several devices gradients are summed.
    "resident": Way(),
    "in-memory": Way(),
    "ddp": Way(),
    "fsdp": Way(sharded=True),
    "deepcompile": Way(sharded=True, activations="move"),
    # The optimizer's states and gradients are on the host, and its step follows backward passes.
    "zero-offload": Way(gradients="host", optimizer="host", step="host"),
    "deepspeed-cpu": Way(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        sharded=True,
        host_buffers=4.0,  # Gradients in float32 beside the 16-bit ones.
    ),
    "torchao": Way(gradients="host", optimizer="host", step="host", step_in_backward=True),
    "patrickstar": Way(
        weights="host", gradients="host", optimizer="host", step="host", sharded=True
    ),
    "gemini": Way(weights="host", gradients="host", optimizer="host", step="host", sharded=True),
    "protrain": Way(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        step_in_backward=True,
        sharded=True,
    ),
    # States are on drives: backward passes write gradients in float32, the update reads the
    # optimizer's states and gradients, and writes the states and new weights.
    "zero-infinity": Way(
        weights="host",
        gradients="drive",
        optimizer="drive",
        step="host",
        sharded=True,
        drive_read=16.0,
        drive_written=12.0,
        drive_gradients=4.0,
    ),
    # The same, but 16-bit gradients stay in host memory, which saves their way to drives and back.
    "mlp-offload": Way(
        weights="host",
        gradients="host",
        optimizer="drive",
        step="host",
        sharded=True,
        drive_read=12.0,
        drive_written=12.0,
    ),
    # States are on drives, the update of a layer follows its backward pass.
    "fuyou": Way(
        weights="drive",
        gradients="host",
        optimizer="drive",
        step="host",
        step_in_backward=True,
        activations="balance",
        in_pieces=True,
        drive_read=14.0,
        drive_written=14.0,
    ),
    # All states are on the host, layers stream through the device, and their results with them.
    "megatrain": Way(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        step_in_backward=True,
        activations="recompute",
        in_pieces=True,
    ),
}
_SAME = {"deepspeed-nvme": "zero-infinity", "lohan": "fuyou", "block-swap": "megatrain"}


def way_of(system: str) -> Way:
    """The choices of a system. InvalidArgument: it is not known."""
    way = _WAYS.get(_SAME.get(system, system))
    if way is None:
        known = ", ".join(sorted((*_WAYS, *_SAME)))
        raise InvalidArgument(f"there is no system '{system}'; known are {known}")
    return way
