"""Reports moments and iterations to the daemon's access predictor (decision 10).

Reports are hints: a wrong one costs time, and one that fails changes nothing. So scripts that never
step (evaluation), or step several optimizers in turn, need no special case here: the daemon records
iterations of several shapes, or one that does not end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from memtide._capi.client import Client, Phase
from memtide._memory.leases import LeaseLedger
from memtide._telemetry import process_memory
from memtide._telemetry.observer import Observer, Passing
from memtide._util.step_phase import Step, StepPhase
from memtide.errors import MemtideError

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.STEP}
# Reading the process's memory costs more than the rest of a report, which takes about 1.5 us: 7 us
# in host memory, and on a GPU tens, as torch makes a dictionary of all its statistics.
_READING_VALID_S = 0.01
# As many as the daemon records of an iteration.
_MOST_MOMENTS = 1 << 13


class _Reading:
    """A number of bytes that is read again once it is older than _READING_VALID_S."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._bytes = 0
        self._until_s = 0.0

    def bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self._bytes = self._read()
            self._until_s = now_s + _READING_VALID_S
        return self._bytes


class Reporter(Passing, StepPhase):
    """Reports to the daemon, and passes all events on to the next observer.

    Nothing is reported while all chunks fit: then no chunk moves, and there is nothing to predict.
    Only where activations have not all fitted, everything is: what is done with them is planned
    from a trace.
    """

    def __init__(
        self,
        client: Client,
        ledger: LeaseLedger,
        next_observer: Observer,
        is_wanted: Callable[[], bool] = lambda: False,
        host_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`is_wanted`: whether all moments are to be reported. `host_bytes`: this process's
        anonymous memory, peaks included if they are known; None: what it has now."""
        super().__init__(next_observer)
        self._client = client
        self._ledger = ledger
        self._is_wanted = is_wanted
        # The phase and name of each moment reported in this iteration, while all are.
        self.moments: list[tuple[str, str]] = []
        device = client.properties.dl_device
        self._device_memory = _Reading(lambda: process_memory.device_bytes(device))
        self._host_memory = _Reading(host_bytes or (lambda: process_memory.host_bytes()))

    @property
    def sampling(self) -> bool:  # type: ignore[override]
        return super().sampling or self._is_wanted()

    def before_step(self, step: Step) -> None:
        self.moment("step", type(step.optimizer).__name__)

    def moment(self, phase: str, name: str) -> None:
        wanted = self._is_wanted()
        if self._ledger.active or wanted:
            with contextlib.suppress(MemtideError):
                own_bytes = self._device_memory.bytes(), self._host_memory.bytes()
                self._client.moment(_PHASES[phase], name, *own_bytes)
                if wanted and len(self.moments) < _MOST_MOMENTS:
                    self.moments.append((phase, name))
        super().moment(phase, name)

    def end_iteration(self) -> None:
        if self._ledger.active or self._is_wanted():
            with contextlib.suppress(MemtideError):
                self._client.end_iteration()
                self.moments.clear()
        super().end_iteration()
