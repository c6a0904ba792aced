"""Says of a process that trains outside of the `memtide run` that started it why it does.

It imports only the standard library, and torch where torch has been imported (memtide_run.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

VARIABLE = "MEMTIDE_RUN"  # The folder of the run (run_folder.py), for the processes that it starts.

_SAID = "said"
_reason = ""


def say_at_first_step(reason: str) -> None:
    """Says on stderr, once, why this process is not managed, when an optimizer first steps in it.
    REQUIRES: torch is imported."""
    global _reason
    from torch.optim import optimizer

    if not _reason:
        optimizer.register_optimizer_step_pre_hook(_say)
    _reason = reason


def _say(*_step: Any) -> None:
    global _reason
    # The hook stays: torch iterates over all of them now.
    if _reason != _SAID:
        program = Path(sys.argv[0]).name if sys.argv else ""
        print(
            f"memtide: process {os.getpid()} ({program}) trains without memtide: {_reason}",
            file=sys.stderr,
            flush=True,
        )
        _reason = _SAID
