"""Bytes for each parameter, by the optimizer's name or as a user writes them."""

from __future__ import annotations

import re

from memtide._plan_file.training import States
from memtide.errors import UsageError

# Weight, gradient, and the optimizer's: its moments, and the fp32 master of a 16-bit weight.
_BY_NAME = {
    "adamw": States(),
    "adamw-fp32": States(weight=4.0, gradient=4.0, optimizer=8.0),
    # memtide.AdamW on bf16 parameters: they are rounded stochastically, and have no master.
    "adamw-bf16": States(optimizer=4.0),
    "lion": States(optimizer=8.0),
    "lion-bf16": States(optimizer=2.0),
    "sgd": States(optimizer=4.0),
    "sgd-fp32": States(weight=4.0, gradient=4.0, optimizer=0.0),
    "momentum-fp32": States(weight=4.0, gradient=4.0, optimizer=4.0),
}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)")


def names() -> tuple[str, ...]:
    """The names that `states_of` knows."""
    return tuple(_BY_NAME)


def states_of(text: str) -> States:
    """The states of "adamw", or of "2+2+12": bytes of a weight, its gradient and the optimizer's
    states of it. UsageError: neither."""
    found = _BY_NAME.get(text.lower())
    if found is not None:
        return found
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--optimizer {text} is not known: it is one of {', '.join(_BY_NAME)}, or the bytes of "
            "a weight, its gradient and its optimizer's states, as 2+2+12"
        )
    weight, gradient, optimizer = map(float, match.groups())
    if not weight:
        raise UsageError(f"--optimizer {text}: a weight has at least a part of a byte")
    return States(weight=weight, gradient=gradient, optimizer=optimizer)
