"""The plan for activations (proto/memtide/v1/activations.proto), as Python values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from memtide._activations.profile import Part


class Choice(enum.Enum):
    """The plan's choice for one part of a block's saved tensors."""

    NONE = "ACTIVATION_CHOICE_UNSPECIFIED"  # There is nothing to choose for.
    KEEP = "ACTIVATION_CHOICE_KEEP"
    MOVE_TO_HOST = "ACTIVATION_CHOICE_MOVE_TO_HOST"
    MOVE_TO_SSD = "ACTIVATION_CHOICE_MOVE_TO_SSD"
    RECOMPUTE = "ACTIVATION_CHOICE_RECOMPUTE"


MOVES = frozenset((Choice.MOVE_TO_HOST, Choice.MOVE_TO_SSD))


@dataclass(frozen=True)
class BlockPlan:
    """For all calls of a block."""

    input: Choice = Choice.NONE
    attention: Choice = Choice.NONE
    rest: Choice = Choice.NONE

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> BlockPlan:
        """From protobuf's JSON of the message."""
        return cls(*(_choice(document, name) for name in ("input", "attention", "rest")))

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        return {name: choice.value for name, choice in vars(self).items()}

    def of(self, part: Part) -> Choice:
        """The choice for a part."""
        if part is Part.INPUT:
            return self.input
        return self.attention if part is Part.ATTENTION else self.rest


@dataclass(frozen=True)
class PredictedIteration:
    """A plan's iteration, as the engine's replay predicts it."""

    elapsed_ns: int = 0
    stalled_ns: int = 0
    recomputed_ns: int = 0
    most_kept_bytes: int = 0
    moved_bytes: int = 0

    @classmethod
    def of_json(cls, document: Mapping[str, Any] | None) -> PredictedIteration | None:
        """From protobuf's JSON of the message; None: it is not set."""
        if document is None:
            return None
        return cls(**{name: int(document.get(name, 0)) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class ForcedPlan:
    """A plan that a system without a search would have."""

    name: str
    predicted: PredictedIteration | None  # None: the budget does not allow it.


@dataclass(frozen=True)
class ActivationPlan:
    """The choices for all tensors that autograd saves in an iteration."""

    blocks: tuple[BlockPlan, ...] = ()  # In the order of ActivationProfile.blocks.
    others: Choice = Choice.NONE
    slots: int = 0  # The chunks' part of the budget.
    allowance_bytes: int = 0  # The rest of it, that may be kept.
    predicted: PredictedIteration | None = None
    unlimited: PredictedIteration | None = None  # Without a limit on memory.
    lower_bound_ns: int = 0
    forced: tuple[ForcedPlan, ...] = ()
    replays: int = 0
    search_ns: int = 0
    least_budget_bytes: int = 0  # Where no plan fits: the least budget that would do.

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> ActivationPlan:
        """From protobuf's JSON of the message."""
        predicted = PredictedIteration.of_json
        return cls(
            blocks=tuple(map(BlockPlan.of_json, document.get("blocks", ()))),
            others=_choice(document, "others"),
            slots=int(document.get("slots", 0)),
            allowance_bytes=int(document.get("allowance_bytes", 0)),
            predicted=predicted(document.get("predicted")),
            unlimited=predicted(document.get("unlimited")),
            lower_bound_ns=int(document.get("lower_bound_ns", 0)),
            forced=tuple(
                ForcedPlan(each.get("name", ""), predicted(each.get("predicted")))
                for each in document.get("forced", ())
            ),
            replays=int(document.get("replays", 0)),
            search_ns=int(document.get("search_ns", 0)),
            least_budget_bytes=int(document.get("least_budget_bytes", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        """Protobuf's JSON of the message."""
        fields = {
            **asdict(self),
            "blocks": [block.as_json() for block in self.blocks],
            "others": self.others.value,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _choice(document: Mapping[str, Any], name: str) -> Choice:
    return Choice(document.get(name, Choice.NONE.value))
