"""The step that this process resumes from. Imports no torch, so that scripts can ask early."""

from __future__ import annotations

from collections.abc import Callable

from memtide.errors import FailedPrecondition

_resumed_step = 0
_answer: int | None = None  # The last one that the script got.
_settle: Callable[[], None] | None = None


def resumed_step() -> int:
    """Number of optimizer steps that the job had committed when `memtide run --resume` resumed it,
    or torchelastic started its ranks anew.

    0: this process starts at the beginning. The parameters and states of that step are in place
    from the first forward pass on, so a script has only to skip the batches before:

        for step, batch in enumerate(batches):
            if step >= memtide.resumed_step():
                train(batch)
    """
    global _answer
    if _settle is not None:
        _settle()
    _answer = _resumed_step
    return _resumed_step


def settle_by(settle: Callable[[], None]) -> None:
    """From now on, `settle` is called before a script gets the step. It opens the job."""
    global _settle
    _settle = settle


def set_resumed_step(step: int) -> None:
    """Called by the code that resumed the job. FailedPrecondition: the script has got another
    answer."""
    global _resumed_step
    if _answer not in (None, step):
        raise FailedPrecondition(
            f"this node has committed {_answer} steps, and all go on from step {step}: call "
            "memtide.resumed_step() after torch.distributed.init_process_group, where nodes agree"
        )
    _resumed_step = step
