"""The job that this process goes on with. Imports no torch: a script may ask before it does."""

from __future__ import annotations

_resumed_step = 0


def resumed_step() -> int:
    """How many optimizer steps this training had made when `memtide run --resume` took it up; 0:
    it begins. The parameters and states of that step are in place at the first forward pass."""
    return _resumed_step


def set_resumed_step(step: int) -> None:
    """Said by who found the job."""
    global _resumed_step
    _resumed_step = step
