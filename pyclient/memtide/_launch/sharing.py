"""What `memtide run --share` asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sharing:
    """Layers that share their parameters."""

    path: str  # The module that has the layers (_sharing/named_layers.py).
    delink_at_step: int | None = None  # The step after which each has its own; None: never.
