"""The step that this process resumes from. Imports no torch, so that scripts can ask early."""

from __future__ import annotations

_resumed_step = 0


def resumed_step() -> int:
    """Number of optimizer steps that the job had committed when `memtide run --resume` resumed it.

    0: this process starts at the beginning. The parameters and states of that step are in place
    from the first forward pass on, so a script has only to skip the batches before:

        for step, batch in enumerate(batches):
            if step >= memtide.resumed_step():
                train(batch)
    """
    return _resumed_step


def set_resumed_step(step: int) -> None:
    """Called by the code that resumed the job."""
    global _resumed_step
    _resumed_step = step
