"""memtide: train models larger than the memory they are given, with the same results.

`memtide run train.py` needs no change of the script. A script can also offload a model itself:

    with memtide.offload(model, optimizer, host_pool="2GiB"):
        train(model, optimizer)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtide._resume.resumed_step import resumed_step
from memtide.errors import (
    Aborted,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MemtideError,
    NoRoom,
    NotFound,
    NotInstalled,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    UsageError,
)

if TYPE_CHECKING:
    from memtide_methods.sharing.layers import delink, share_layers

    from memtide._api import activations, checkpoint, close, hold, load_checkpoint, offload
    from memtide._offloaded import Offloaded
    from memtide.optim import AdamW, Lion


def _read_version() -> str:
    """The content of VERSION: packages install it in this folder; a checkout has it at its root."""
    folder = Path(__file__).parent
    installed = folder / "VERSION"
    file = installed if installed.exists() else folder.parents[1] / "VERSION"
    return file.read_text().strip()


__version__ = _read_version()

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
    "NoRoom",
    "NotFound",
    "NotInstalled",
    "Offloaded",
    "PermissionDenied",
    "ResourceExhausted",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UsageError",
    "activations",
    "checkpoint",
    "close",
    "delink",
    "hold",
    "load_checkpoint",
    "offload",
    "resumed_step",
    "share_layers",
]


def __getattr__(name: str) -> Any:
    # These names need torch, so they are imported at their first use: `memtide status` starts at
    # once, and under `memtide run` it is the script that imports torch.
    if name in ("activations", "checkpoint", "close", "hold", "load_checkpoint", "offload"):
        from memtide import _api

        return getattr(_api, name)
    if name == "Offloaded":
        from memtide import _offloaded

        return _offloaded.Offloaded
    if name in ("delink", "share_layers"):
        from memtide_methods.sharing import layers

        return getattr(layers, name)
    if name in ("AdamW", "Lion"):
        from memtide import optim

        return getattr(optim, name)
    raise AttributeError(f"module 'memtide' has no attribute '{name}'")
