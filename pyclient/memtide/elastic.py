"""Device memory given back to a script that needs more of it than was foreseen.

A script that runs short of it is served first: chunks leave, and what failed is done again. Where
a whole iteration leaves room, chunks return, up to the share that the job began with: not earlier,
as torch's allocator keeps what it has taken until it is asked. Each time that a return proves too
much, the next one waits for twice as many iterations.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import torch

from memtide.adopt import Adopter
from memtide.errors import DeadlineExceeded, OutOfRoom
from memtide.sizes import format_size, parse_size

_FEWEST_SLOTS = 4
_TIMEOUT_MS = 60_000
# Iterations without a shortage before chunks return: at first, and at most.
_PATIENCE, _MOST_PATIENCE = 2, 1024
_ASKED = re.compile(r"Tried to allocate ([0-9.]+) ([KMGT]?i?B)")


class Elastic:
    """The device share of one client's job, which shrinks as its script grows."""

    def __init__(self, adopter: Adopter) -> None:
        self._adopter = adopter
        self._slots = self._share_slots = adopter.client.properties.device_slots
        self._iterations = 0  # Without a shortage.
        self._patience = _PATIENCE
        self._returned = False  # Chunks did, since the last shortage.
        self._slack_bytes = adopter.chunk_bytes

    def retry(self, short: torch.OutOfMemoryError, run: Callable[[], Any]) -> Any:
        """Runs again what was short of device memory, with fewer and fewer chunks on the device.

        torch.OutOfMemoryError: also with the fewest.
        """
        wanted = _asked_bytes(short)
        self._iterations = 0
        self._slack_bytes = max(wanted, self._adopter.chunk_bytes)
        if self._returned:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._returned = False
        while self._slots > _FEWEST_SLOTS:
            self._give_back(wanted)
            try:
                return run()
            except torch.OutOfMemoryError as error:
                short = error
        raise torch.OutOfMemoryError(
            f"{short} memtide keeps {self._slots} chunks of "
            f"{format_size(self._adopter.chunk_bytes)} on the device, the fewest that it needs"
        ) from short

    def end_iteration(self) -> None:
        """Lets chunks return to memory that a whole iteration has left free."""
        if self._slots == self._share_slots or not torch.cuda.is_available():
            return
        self._iterations += 1
        if self._iterations < self._patience:
            return
        chunk_bytes = self._adopter.chunk_bytes
        free_bytes, _ = torch.cuda.mem_get_info(self._adopter.device)
        more = (free_bytes - self._slack_bytes) // chunk_bytes
        more = min(more, self._share_slots - self._slots)
        if more <= 0:
            return
        try:
            self._adopter.client.resize((self._slots + more) * chunk_bytes, _TIMEOUT_MS)
        except OutOfRoom:  # Another job has it now.
            self._iterations = 0
            return
        self._slots += more
        self._returned = True
        self._adopter.ledger.refresh()

    def _give_back(self, wanted_bytes: int) -> None:
        chunk_bytes = self._adopter.chunk_bytes
        fewer = max(-(-wanted_bytes // chunk_bytes), self._slots // 8, 1)
        self._slots = max(_FEWEST_SLOTS, self._slots - fewer)
        self._adopter.ledger.release_all()  # They were to make things fast.
        # Another session may keep some of it: trying again will tell whether it was enough.
        with contextlib.suppress(DeadlineExceeded):
            self._adopter.client.resize(self._slots * chunk_bytes, _TIMEOUT_MS)
        self._adopter.ledger.refresh()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _asked_bytes(error: torch.OutOfMemoryError) -> int:
    """What CUDA's allocator says that it tried to get; 0: it does not say."""
    found = _ASKED.search(str(error))
    return parse_size(found[1] + found[2]) if found else 0
