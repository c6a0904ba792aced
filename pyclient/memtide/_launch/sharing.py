"""The interface of `memtide run --share`, whose code a run imports only if it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from memtide._util.step_phase import StepPhase

if TYPE_CHECKING:
    from torch import nn


class LayerSharing(StepPhase):
    """Layers of the script that share their parameters."""

    def before_sharding(
        self, modules: Sequence[nn.Module], options: Mapping[str, Any]
    ) -> list[nn.Module]:
        """A script calls fully_shard. Returns the modules to shard together instead."""
        raise NotImplementedError


class Sharing(Protocol):
    """An option of the run: which layers share. It can be pickled, for the processes of the run."""

    def flags(self) -> dict[str, object]:
        """The values of the flags of `memtide run` that ask for it; None: it is not given."""

    def start(self, say: Callable[[str], None]) -> LayerSharing:
        """Called when torch is imported. `say` is called with each change, in a line."""
