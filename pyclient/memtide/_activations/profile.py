"""The tensors that autograd saves in one iteration (proto/memtide/v1/activations.proto), as Python
values.

Moments are numbered from the first moment of the profiled iteration, as in its trace.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


class Part(enum.Enum):
    """A part of a block's saved tensors, which is described as one."""

    INPUT = "ACTIVATION_PART_INPUT"  # The tensors that the block was given.
    ATTENTION = "ACTIVATION_PART_ATTENTION"  # Results of fused attention kernels.
    REST = "ACTIVATION_PART_REST"


@dataclass(frozen=True)
class SavedBytes:
    """Storages of one part that one call of a block saves."""

    part: Part
    size_bytes: int  # Each storage once; without parameters.
    packed_moment: int  # In which the last of them was saved.
    first_unpacked_moment: int
    last_unpacked_moment: int
    micro_batch: int = 0

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> SavedBytes:
        """From protobuf's JSON of the message."""
        return cls(
            part=Part(document.get("part", Part.REST.value)),
            size_bytes=int(document.get("size_bytes", 0)),
            packed_moment=int(document.get("packed_moment", 0)),
            first_unpacked_moment=int(document.get("first_unpacked_moment", 0)),
            last_unpacked_moment=int(document.get("last_unpacked_moment", 0)),
            micro_batch=int(document.get("micro_batch", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        return {**asdict(self), "part": self.part.value}


@dataclass(frozen=True)
class ActivationBlock:
    """A repeated block of the model, and what all its calls save."""

    name: str
    saved: tuple[SavedBytes, ...] = ()
    forward_ns: int = 0  # To run its forward pass again, once, if it is `recomputable`.
    forward_without_attention_ns: int = 0  # With attention's results kept; 0: as `forward_ns`.
    recomputable: bool = False

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> ActivationBlock:
        """From protobuf's JSON of the message."""
        return cls(
            name=document.get("name", ""),
            saved=tuple(map(SavedBytes.of_json, document.get("saved", ()))),
            forward_ns=int(document.get("forward_ns", 0)),
            forward_without_attention_ns=int(document.get("forward_without_attention_ns", 0)),
            recomputable=bool(document.get("recomputable", False)),
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        return {**vars(self), "saved": [saved.as_json() for saved in self.saved]}

    def bytes_of(self, part: Part) -> int:
        """The bytes of a part that all calls together save."""
        return sum(saved.size_bytes for saved in self.saved if saved.part is part)


@dataclass(frozen=True)
class ActivationProfile:
    """One iteration, in which nothing was recomputed."""

    blocks: tuple[ActivationBlock, ...] = ()  # In the order of their forward passes.
    others: tuple[SavedBytes, ...] = ()  # Saved outside of blocks.
    budget_bytes: int = 0  # For chunks and for kept activations, on the fastest tier.
    least_slots: int = 0  # The fewest that chunks must have.
    fixed_slots: int = 0  # The slots of chunks whatever the plan is; 0: the plan divides.
    iteration_moments: int = 0  # By which the iteration is found in a trace; 0: the last one.

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> ActivationProfile:
        """From protobuf's JSON of the message."""
        return cls(
            blocks=tuple(map(ActivationBlock.of_json, document.get("blocks", ()))),
            others=tuple(map(SavedBytes.of_json, document.get("others", ()))),
            budget_bytes=int(document.get("budget_bytes", 0)),
            least_slots=int(document.get("least_slots", 0)),
            fixed_slots=int(document.get("fixed_slots", 0)),
            iteration_moments=int(document.get("iteration_moments", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        return {
            **vars(self),
            "blocks": [block.as_json() for block in self.blocks],
            "others": [saved.as_json() for saved in self.others],
        }
