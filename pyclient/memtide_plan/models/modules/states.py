"""The states of a torch optimizer for each parameter, by its class and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memtide._plan_file.training import States

_TWO = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "LAMB", "Lamb"}
_ONE = {"Adagrad", "Lion", "ASGD", "Rprop", "RMSprop"}
_NONE = {"Adafactor", "SGD"}


def states_of(optimizer: Any, weight_bytes: float) -> tuple[States, str | None]:
    """States of an optimizer whose parameters have weights of `weight_bytes`, and what was assumed,
    in a sentence. Torch's optimizers have their moments in the parameter's type."""
    settings: Mapping[str, Any] = optimizer.defaults
    known = _TWO | _ONE | _NONE
    kind = next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in known), None)
    moments = 2 if kind is None or kind in _TWO else int(kind in _ONE)
    moments += bool(settings.get("momentum")) + bool(settings.get("amsgrad"))
    moments += bool(settings.get("centered"))
    states = States(weight=weight_bytes, gradient=weight_bytes, optimizer=moments * weight_bytes)
    if kind is not None:
        return states, None
    name = type(optimizer).__name__
    return states, f"The optimizer {name} is not known: it is counted as if it had two moments."
