"""Reports moments and iterations to the daemon's access predictor (decision 10).

Reports are hints: a wrong one costs time, and one that fails changes nothing. So scripts that never
step (evaluation), or step several optimizers in turn, need no special case here: the daemon records
iterations of several shapes, or one that does not end.
"""

from __future__ import annotations

import contextlib
import time

from memtide._capi.client import Client, Phase
from memtide._memory.leases import LeaseLedger
from memtide._telemetry import process_memory
from memtide._telemetry.observer import Observer, SpeculativeBatches
from memtide.errors import MemtideError

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.STEP}
# Reading the process's host memory costs more than the rest of a report (about 7 us to 1.5 us).
_HOST_BYTES_VALID_S = 0.01


class Reporter(Observer):
    """Reports to the daemon, and passes all events on to the next observer.

    Nothing is reported while all chunks fit: then no chunk moves, and there is nothing to predict.
    """

    def __init__(self, client: Client, ledger: LeaseLedger, next_observer: Observer) -> None:
        self._client = client
        self._ledger = ledger
        self._next = next_observer
        self._device = client.properties.dl_device
        self._host_bytes = 0
        self._host_bytes_until_s = 0.0

    @property
    def sampling(self) -> bool:  # type: ignore[override]
        return self._next.sampling

    def moment(self, phase: str, name: str) -> None:
        if self._ledger.active:
            with contextlib.suppress(MemtideError):
                own_device_bytes = process_memory.device_bytes(self._device)
                self._client.moment(_PHASES[phase], name, own_device_bytes, self._own_host_bytes())
        self._next.moment(phase, name)

    def end_iteration(self) -> None:
        if self._ledger.active:
            with contextlib.suppress(MemtideError):
                self._client.end_iteration()
        self._next.end_iteration()

    def stepped(self, waited_s: float, batches: SpeculativeBatches) -> None:
        self._next.stepped(waited_s, batches)

    def _own_host_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._host_bytes_until_s:
            self._host_bytes = process_memory.host_bytes()
            self._host_bytes_until_s = now_s + _HOST_BYTES_VALID_S
        return self._host_bytes
