"""What comes when, told to the daemon, which foresees the next iteration from it.

Reports are hints: a wrong one costs time, and one that fails changes nothing. So a script that
never steps (evaluation) or steps several optimizers in turn needs no care here; the daemon sees
iterations of several shapes, or one that does not end.
"""

from __future__ import annotations

import contextlib
import time

from memtide import own_memory
from memtide._native import Client, Phase
from memtide.errors import MemtideError
from memtide.leases import Ledger
from memtide.observer import EarlyBatches, Observer

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.STEP}
# Reading what a process has costs more than all the rest of a report.
_HOST_BYTES_GOOD_FOR_S = 0.01


class Reporter(Observer):
    """Reports to the daemon, and passes everything on to the observer behind it.

    Nothing is reported while every chunk can be held at once, as then nothing moves.
    """

    def __init__(self, client: Client, ledger: Ledger, behind: Observer) -> None:
        self._client = client
        self._ledger = ledger
        self._behind = behind
        self._device = client.properties.dl_device
        self._host_bytes = 0
        self._host_bytes_until_s = 0.0

    @property
    def sampling(self) -> bool:  # type: ignore[override]
        return self._behind.sampling

    def moment(self, phase: str, name: str) -> None:
        if self._ledger.active:
            with contextlib.suppress(MemtideError):
                own_device_bytes = own_memory.device_bytes(self._device)
                self._client.moment(_PHASES[phase], name, own_device_bytes, self._own_host_bytes())
        self._behind.moment(phase, name)

    def end_iteration(self) -> None:
        if self._ledger.active:
            with contextlib.suppress(MemtideError):
                self._client.end_iteration()
        self._behind.end_iteration()

    def stepped(self, waited_s: float, early: EarlyBatches) -> None:
        self._behind.stepped(waited_s, early)

    def _own_host_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._host_bytes_until_s:
            self._host_bytes = own_memory.host_bytes()
            self._host_bytes_until_s = now_s + _HOST_BYTES_GOOD_FOR_S
        return self._host_bytes
