"""How a model is trained: what a step reads, and what is kept for each parameter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes for each parameter. A frozen parameter has its weight alone."""

    weight: float = 2.0
    gradient: float = 2.0
    # Beside the weight: the optimizer's moments, and the master of a 16-bit weight.
    optimizer: float = 12.0

    def trained(self) -> float:
        """Bytes of all states of a parameter that is trained."""
        return self.weight + self.gradient + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Training:
    """One step reads `batch` sequences of `sequence` tokens, on all devices together."""

    batch: int
    sequence: int
    # Sequences that a device computes at once. None: the plan chooses.
    micro_batch: int | None = None
    states: States = States()
    # In which the products of matrices are computed: a key of Device.flop_per_s.
    compute_type: str = "bfloat16"
    # Where the optimizer computes: "host", "device", or None, which lets the plan choose.
    optimizer_on: str | None = None
    # The choice for every block's activations: "keep", "move" or "recompute". None: the plan
    # chooses.
    activations: str | None = None

    def tokens(self) -> int:
        """Tokens that a step reads."""
        return self.batch * self.sequence
