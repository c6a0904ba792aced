"""How systems work: which states are where, what is done with activations, and what overlaps.

A strategy is a small set of choices, not of constants: its times follow from the machine's rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtide._plan_file.machine import Device
from memtide.errors import InvalidArgument

from memtide_plan.estimate.work import Rates


@dataclass(frozen=True, kw_only=True)
class SystemStrategy:
    """The choices of one system. Places are "device", "host" or "drive"."""

    # Placement and activations are searched in the engine; the places below are then not used.
    is_searched: bool = False
    foreseen: bool = False  # All its transfers are known ahead; else they are the engine's own.
    weights: str = "device"
    gradients: str = "device"
    optimizer: str = "device"  # Where the optimizer's states are.
    step: str = "device"  # Where the optimizer computes.
    step_in_backward: bool = False
    # Parameters that an update in the backward pass reads, updates and writes at a time. None: few.
    group: int | None = None
    # "balance": as many move as makes a step fastest, the others are computed again. None: they
    # are kept where they fit, else computed again. The training's own choice goes first.
    activations: str | None = None
    # A block's passes compute one sequence at a time, and what blocks hand on is on the host: the
    # device has one sequence's activations of one block.
    in_pieces: bool = False
    moves_inputs: bool = False  # Blocks' results are on the host; blocks compute whole batches.
    # Whole forward passes over a block, each with its weights, before its backward pass. 0: one,
    # up to what the backward pass needs.
    forwards_again: int = 0
    # The constant of what its kernels of attention reach of the rate of products of matrices.
    attention: str = "attention.flash2"
    kernels: str | None = None  # The constant of what its kernels reach of others' rate.
    # Chunks of states for which the host has no room are on devices.
    spills_to_device: bool = False
    # The states that devices divide among them, by ZeRO (Rajbhandari et al., SC 2020): the
    # optimizer's states from stage 1 on, gradients from 2 on, and in 3 weights, which are gathered
    # for each use.
    stage: int = 0
    # Bytes of a parameter's gradient that a backward pass writes to the drive, and the update reads
    # with the optimizer's states.
    drive_gradients: float = 0.0
    host_buffers: float = 0.0  # Bytes of host memory for each parameter beside its states.
    # Bytes of host memory that a parameter's update passes. None: all states, and 16-bit gradients
    # that arrive and are cast.
    update_bytes: float | None = None
    # Bytes of a parameter that its update brings to the device afterwards, and casts there.
    cast_in_step: float = 0.0

    def rates(self, device: Device, compute_type: str) -> Rates:
        """The rates that it reaches on a device. InvalidArgument: no peak in this type is known."""
        return Rates.of(device, compute_type, attention=self.attention, kernels=self.kernels)


_STRATEGIES = {
    "memtide": SystemStrategy(is_searched=True),
    # Plans placement, moves and recomputation by a simulator; the step follows each gradient.
    "dataflow": SystemStrategy(
        is_searched=True,
        foreseen=True,
        step="device",
        step_in_backward=True,
        attention="attention.tuned",
    ),
    "flextrain": SystemStrategy(
        is_searched=True,
        foreseen=True,
        step="device",
        step_in_backward=True,
        attention="attention.tuned",
        kernels="kernels.flextrain",
    ),
    # All is on the device, as plain torch has it; on several devices gradients are summed.
    "resident": SystemStrategy(),
    "in-memory": SystemStrategy(),
    # The same, with what layers are given on the host from their forward to their backward pass.
    "activation-offload": SystemStrategy(moves_inputs=True),
    "ddp": SystemStrategy(),
    "zero-1": SystemStrategy(stage=1),
    "zero-2": SystemStrategy(stage=2),
    "fsdp": SystemStrategy(stage=3),
    # The same, as it was when attention was Triton's after FlashAttention 1.
    "llm-foundry": SystemStrategy(stage=3, attention="attention.flash1"),
    "deepcompile": SystemStrategy(stage=3, activations="move"),
    # As torch's reentrant checkpoints work.
    "resident-reentrant": SystemStrategy(forwards_again=1),
    # The optimizer's states and gradients are on the host, and its step follows backward passes:
    # an update in float32, whose new weights leave for the device as such.
    "zero-offload": SystemStrategy(
        gradients="host",
        optimizer="host",
        step="host",
        stage=2,
        forwards_again=1,
        update_bytes=32.0,
        cast_in_step=4.0,
    ),
    "deepspeed-cpu": SystemStrategy(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        stage=3,
        host_buffers=4.0,  # Gradients in float32 beside the 16-bit ones.
    ),
    # Gradients are copied to the host, and stay on the device until the step is done.
    "torchao": SystemStrategy(
        optimizer="host", step="host", step_in_backward=True, forwards_again=1
    ),
    "patrickstar": SystemStrategy(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        stage=3,
        spills_to_device=True,
    ),
    "gemini": SystemStrategy(
        weights="host", gradients="host", optimizer="host", step="host", stage=3
    ),
    "protrain": SystemStrategy(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        step_in_backward=True,
        stage=3,
    ),
    # States are on drives: backward passes write gradients in float32, the update reads the
    # optimizer's states and gradients, and writes the states and new weights.
    "zero-infinity": SystemStrategy(
        weights="host",
        gradients="drive",
        optimizer="drive",
        step="host",
        stage=3,
        drive_gradients=4.0,
    ),
    # Weights are on drives, too.
    "zero-infinity-weights": SystemStrategy(
        weights="drive",
        gradients="drive",
        optimizer="drive",
        step="host",
        stage=3,
        drive_gradients=4.0,
    ),
    # The same, but 16-bit gradients stay in host memory, which saves their way to drives and back.
    "mlp-offload": SystemStrategy(
        weights="host",
        gradients="host",
        optimizer="drive",
        step="host",
        stage=3,
    ),
    # States are on drives, the update of a layer follows its backward pass.
    "fuyou": SystemStrategy(
        weights="drive",
        gradients="host",
        optimizer="drive",
        step="host",
        step_in_backward=True,
        activations="balance",
        in_pieces=True,
        attention="attention.flash1",
        group=700_000_000,
    ),
    # All states are on the host, and layers stream through the device. The backward pass computes
    # the inputs of four layers at a time, and each of them again with what its own needs. Weights
    # are copied into pinned memory after the step.
    "megatrain": SystemStrategy(
        weights="host",
        gradients="host",
        optimizer="host",
        step="host",
        activations="recompute",
        forwards_again=2,
        host_buffers=2.0,
    ),
}
_SAME = {"deepspeed-nvme": "zero-infinity", "lohan": "fuyou", "block-swap": "megatrain"}


def strategy_of(system: str) -> SystemStrategy:
    """The choices of a system. InvalidArgument: it is not known."""
    strategy = _STRATEGIES.get(_SAME.get(system, system))
    if strategy is None:
        known = ", ".join(sorted((*_STRATEGIES, *_SAME)))
        raise InvalidArgument(f"there is no system '{system}'; known are {known}")
    return strategy
