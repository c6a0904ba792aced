"""The step that a thread makes now."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch.optim import Optimizer

from memtide._optimizer_step.deferred_update import DeferredUpdates
from memtide._optimizer_step.rollback import Undo


class PresentStep(threading.local):
    """The step that the calling thread makes. Any thread may read and write its own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Ends the step."""
        self.optimizer: Optimizer | None = None  # None: the thread makes no step in parts.
        self.release: Callable[[], None] = lambda: None
        self.deferred = DeferredUpdates()
        self.is_committed = False  # With all ranks of a named job.
        self.undo = Undo()
