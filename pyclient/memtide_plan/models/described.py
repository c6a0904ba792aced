"""A source's description of a model, and of its training."""

from __future__ import annotations

from dataclasses import dataclass

from memtide._plan_file.model import Model
from memtide._plan_file.training import States
from memtide.errors import InvalidArgument

# Bytes of an element of activations, by the type in which products of matrices are computed.
_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "tf32": 4}
KERNELS = ("torch", "fused", "plain", "pieces")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is described, where its source leaves a choice."""

    # A key of Device.flop_per_s. None: bfloat16, or what a script or a trace says itself.
    compute_type: str | None = None
    # "torch": each norm and each activation function is one operation, whose result autograd saves
    # for the product of matrices that follows, and attention is one (scaled_dot_product_attention).
    # "fused": kernels that compute the results of norms and of activation functions again in the
    # backward pass, and a loss that never has all logits at once, as systems with kernels of their
    # own do.
    # "plain": modules of Python alone. RMSNorms compute in float32, one product of matrices has
    # queries, keys and values as its result, and the inputs of adapters are dropped out.
    # "pieces": as "torch", but the loss converts a piece of the logits to float32 at a time. All of
    # them are there in the compute type.
    # For a config.json alone: a script and a trace show what they save.
    kernels: str = "torch"
    # The rank of adapters (LoRA) of a model whose own parameters are frozen; 0: all are trained.
    lora_rank: int = 0
    # The matrices of a layer that have adapters. The experts of a layer have one each.
    lora_targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    # True: a pass multiplies with the sum of a matrix and its adapter, which is computed first.
    lora_merged: bool = False
    # How many sequences of how many tokens a trace's iteration has read: a trace does not know.
    batch: int | None = None
    sequence: int | None = None
    # Whether the plan is for the processor that computed a trace: then its times hold.
    computes_here: bool = False
    # A script's own arguments, and how long it may run until it shows its model.
    arguments: tuple[str, ...] = ()
    timeout_s: float = 120.0

    def element_bytes(self) -> int:
        """Bytes of one activation. InvalidArgument: the type or the kernels are not known."""
        if self.kernels not in KERNELS:
            raise InvalidArgument(f"kernels '{self.kernels}': they are {', '.join(KERNELS)}")
        return element_bytes(self.compute_type or "bfloat16")


DEFAULTS = Options()


@dataclass(frozen=True, kw_only=True)
class Described:
    """A model, and what its source says of training it. None: the source does not say."""

    model: Model
    states: States | None = None
    batch: int | None = None
    sequence: int | None = None
    compute_type: str | None = None
    notes: tuple[str, ...] = ()  # Assumptions and omissions, a sentence each.


def element_bytes(compute_type: str) -> int:
    """Bytes of an activation that is computed in this type. InvalidArgument: it is not known."""
    if compute_type not in _ELEMENT_BYTES:
        known = ", ".join(_ELEMENT_BYTES)
        raise InvalidArgument(f"compute type '{compute_type}': the known ones are {known}")
    return _ELEMENT_BYTES[compute_type]
