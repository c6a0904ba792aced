"""memtide: train models larger than the memory they are given, with the same results.

`memtide run train.py` needs nothing in the script. In a script of your own:

    with memtide.offload(model, optimizer, host_pool="2GiB"):
        train(model, optimizer)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memtide.errors import (
    Aborted,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MemtideError,
    NotFound,
    NotInstalled,
    OutOfRoom,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    UsageError,
)
from memtide.job import resumed_step

if TYPE_CHECKING:
    from memtide.adamw import AdamW
    from memtide.api import Offloaded, checkpoint, offload
    from memtide.lion import Lion

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AdamW",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "Lion",
    "MemtideError",
    "NotFound",
    "NotInstalled",
    "Offloaded",
    "OutOfRoom",
    "PermissionDenied",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UsageError",
    "checkpoint",
    "offload",
    "resumed_step",
]


def __getattr__(name: str) -> Any:
    # torch is imported only by those who use it: `memtide status` starts at once, and
    # `memtide run` leaves the moment of torch's import to the script.
    if name in ("Offloaded", "checkpoint", "offload"):
        from memtide import api

        return getattr(api, name)
    if name == "AdamW":
        from memtide import adamw

        return adamw.AdamW
    if name == "Lion":
        from memtide import lion

        return lion.Lion
    raise AttributeError(f"module 'memtide' has no attribute '{name}'")
