"""The options --share and --delink-at-step of `memtide run`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memtide_methods.sharing.shared_layers import SharedLayers


@dataclass(frozen=True)
class Sharing:
    """Layers that share their parameters."""

    path: str  # The module that has the layers (named_layers.py).
    delink_at_step: int | None = None  # The step after which each has its own; None: never.

    def flags(self) -> dict[str, object]:
        """As in memtide._launch.sharing."""
        return {"share": self.path, "delink-at-step": self.delink_at_step}

    def start(self, say: Callable[[str], None]) -> SharedLayers:
        """`say` is called with each change, in a line."""
        from memtide_methods.sharing.shared_layers import SharedLayers

        return SharedLayers(self.path, self.delink_at_step, say)
