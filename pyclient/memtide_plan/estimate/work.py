"""The work of a device for one block of a model and one micro-batch, in seconds and bytes.

Attention's kernels reach a share of the peak of products of matrices (products.py). The other
operations pass
the device's memory: what autograd saves is written once and read once in a forward pass, and read
once in a backward pass, which does the same with gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memtide._plan_file.machine import Device
from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import Training
from memtide.errors import InvalidArgument

from memtide_plan.calibration import constant
from memtide_plan.estimate.products import Multiplier, Passes, passes
from memtide_plan.models.described import element_bytes

# How often what is saved passes the memory in a forward pass, and in a backward pass.
_FORWARD_PASSES, _BACKWARD_PASSES = 2, 4
# A backward pass of attention computes its products again, and four more.
_ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True, kw_only=True)
class Work:
    """One block, for one micro-batch."""

    block: Block
    forward_s: float
    recompute_s: float  # To compute again what its backward pass needs.
    attention_s: float  # The part of both that attention's kernels take.
    backward_s: float
    input_bytes: float  # Bytes that autograd saves, by part.
    attention_bytes: float
    rest_bytes: float

    def saved_bytes(self) -> float:
        """All that autograd saves."""
        return self.input_bytes + self.attention_bytes + self.rest_bytes

    def weight_bytes(self, bytes_per_parameter: float) -> float:
        """Its weights."""
        return self.block.parameters * bytes_per_parameter


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates that a device reaches."""

    flop_per_s: float
    attention_flop_per_s: float
    memory_bytes_per_s: float
    call_s: float  # For each forward or backward pass of a block, beside its operations.
    multiprocessors: int | None = None

    @classmethod
    def of(
        cls,
        device: Device,
        compute_type: str,
        *,
        attention: str = "attention.flash2",
        kernels: str | None = None,
    ) -> Rates:
        """The rates of a device; `attention`, `kernels`: the constants that say how much of the
        reached peak a system's kernels of attention and its products reach.

        InvalidArgument: its peak in this type is not known."""
        if compute_type not in device.flop_per_s:
            known = ", ".join(sorted(device.flop_per_s))
            raise InvalidArgument(
                f"{device.name} has no known rate of products in {compute_type}; it has those in "
                f"{known}"
            )
        own = constant(kernels) if kernels is not None else 1.0
        flop_per_s = device.flop_per_s[compute_type] * device.reached_flop * own
        of_older = 1.0 if attention == "attention.tuned" else device.reached_by_older
        return cls(
            flop_per_s=flop_per_s,
            attention_flop_per_s=flop_per_s * constant(attention) * of_older,
            memory_bytes_per_s=device.memory_bytes_per_s * device.reached_memory,
            call_s=constant("call_s"),
            multiprocessors=device.multiprocessors,
        )

    def multiplier(self) -> Multiplier:
        """The rates that products of matrices reach."""
        return Multiplier(
            flop_per_s=self.flop_per_s,
            memory_bytes_per_s=self.memory_bytes_per_s,
            multiprocessors=self.multiprocessors,
        )


def work_of(model: Model, training: Training, rates: Rates, micro_batch: float) -> tuple[Work, ...]:
    """The work of each entry of `model.blocks`, for `micro_batch` sequences."""
    return tuple(_work(block, model.causal, training, rates, micro_batch) for block in model.blocks)


def _work(
    block: Block,
    causal: bool,
    training: Training,
    rates: Rates,
    micro_batch: float,
) -> Work:
    tokens = float(micro_batch * training.sequence)
    products = _products(block, tokens, rates, training)
    pairs = tokens * training.sequence * (0.5 if causal else 1.0)
    attention_s = block.flop_per_token_pair * pairs / rates.attention_flop_per_s
    pass_s = block.saved_bytes_per_token() * tokens / rates.memory_bytes_per_s
    beside_s = block.beside_forward_bytes_per_token * tokens / rates.memory_bytes_per_s
    back_s = block.beside_backward_bytes_per_token * tokens / rates.memory_bytes_per_s
    others_s = _FORWARD_PASSES * pass_s + beside_s + rates.call_s
    # torch's checkpoint ends before the last product, whose result autograd does not save.
    needed = 1 - constant("output_product_share")
    work = Work(
        block=block,
        forward_s=products.forward + attention_s + others_s,
        recompute_s=needed * products.forward + attention_s + others_s,
        attention_s=attention_s,
        backward_s=products.inputs
        + products.weights
        + _ATTENTION_BACKWARD * attention_s
        + _BACKWARD_PASSES * pass_s
        + back_s
        + rates.call_s,
        input_bytes=block.input_bytes_per_token * tokens,
        attention_bytes=block.attention_bytes_per_token * tokens,
        rest_bytes=block.rest_bytes_per_token * tokens,
    )
    if block.forward_s_per_token is None or block.backward_s_per_token is None:
        return work
    # Which part of a measured pass is attention's, or its last product, was not measured.
    measured_s = block.forward_s_per_token * tokens
    return replace(
        work,
        forward_s=measured_s,
        recompute_s=measured_s,
        attention_s=0.0,
        backward_s=block.backward_s_per_token * tokens,
    )


def _products(block: Block, tokens: float, rates: Rates, training: Training) -> Passes:
    """The time that a block's products of matrices take."""
    if block.products:
        size = element_bytes(training.compute_type)
        return passes(block.products, tokens, rates.multiplier(), size)
    seconds = block.flop_per_token * tokens / rates.flop_per_s
    if seconds > 0:
        read_s = block.parameters * training.states.weight / rates.memory_bytes_per_s
        seconds = max(seconds, read_s)
    trained = block.trained_parameters / block.parameters if block.parameters else 1.0
    return Passes(forward=seconds, inputs=seconds, weights=trained * seconds)
