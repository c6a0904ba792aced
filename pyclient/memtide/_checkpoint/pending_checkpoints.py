"""Writes checkpoints from the content that a committed step replaced (see safetensors_file.py).

After the commit, the step's shadow chunks hold the old content (decision 13). They stay until it
is written; the next step allocates new ones, or waits if there is no room for them. A chunk that
the step did not change is read in place, and a later step that would change it waits for the
writer.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping

from memtide._checkpoint.safetensors_file import Checkpoint, blocks_of
from memtide._memory.managed_memory import ManagedMemory
from memtide.errors import MemtideError


class PendingCheckpoints:
    """The checkpoints of one process. Use its methods from the thread that trains."""

    def __init__(self, memory: ManagedMemory) -> None:
        self._memory = memory
        self._addresses = memory.addresses
        self._requested: dict[Checkpoint, int] = {}  # With the thread that trains.
        self._read_in_place: set[int] = set()  # Places that the writer reads in place.
        self._writer: threading.Thread | None = None
        self._at_exit = False

    @property
    def wanted(self) -> bool:
        """Whether the next step must leave the old content in its shadow chunks."""
        return bool(self._requested)

    def request(self, checkpoint: Checkpoint) -> None:
        """Requests that `checkpoint` is written from what the next step replaces."""
        self._requested[checkpoint] = threading.get_ident()
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self.write_now)

    def write_if_awaited(self, checkpoint: Checkpoint) -> None:
        """Called by a thread that is about to wait for a checkpoint. While the thread that trains
        waits, no next step can come, so it writes the file itself. Any other thread waits for that
        next step."""
        if self._requested.get(checkpoint) == threading.get_ident():
            self.write_now()

    def write_now(self) -> None:
        """Writes the requested checkpoints in this thread, from the present content, and waits for
        the writer. Call it before chunks are changed in place."""
        if self._requested or self._read_in_place:
            self.wait()
        checkpoints, self._requested = self._requested, {}
        for checkpoint in checkpoints:
            checkpoint.write(lambda address, size: self._read(address, size, {}))

    def before_step(self, places: Iterable[int]) -> None:
        """Call it before a step changes the chunks at these places."""
        if self._requested or not self._read_in_place.isdisjoint(places):
            self.wait()

    def wait(self) -> bool:
        """Waits for the writer to end. Returns whether it was still writing."""
        writer, self._writer = self._writer, None
        if writer is None or not writer.is_alive():
            return False
        writer.join()
        return True

    def start_writing(self, shadows: Mapping[int, int]) -> None:
        """Starts the writer after a commit. `shadows` maps places to those of their shadow chunks,
        which hold the old content. This object frees them when it is written."""
        checkpoints, self._requested = self._requested, {}
        needed = {
            place
            for checkpoint in checkpoints
            for entry in checkpoint.entries
            if entry.address
            for place in self._addresses.places_of(entry.address, max(1, entry.size_bytes))
        }
        self._read_in_place = needed - shadows.keys()

        def write() -> None:
            for checkpoint in checkpoints:
                checkpoint.write(lambda address, size: self._read(address, size, shadows))
            self._read_in_place = set()
            for shadow in shadows.values():
                with contextlib.suppress(MemtideError):  # The session may be gone by now.
                    self._memory.client.free(shadow, 1)

        self._writer = threading.Thread(target=write, name="memtide-checkpoint")
        self._writer.start()

    def _read(self, address: int, size_bytes: int, shadows: Mapping[int, int]) -> Iterator[bytes]:
        base, chunk_bytes = self._addresses.base, self._addresses.chunk_bytes
        bytes_at = self._memory.arenas.storages.bytes_at
        for start, size in blocks_of(address - base, size_bytes, chunk_bytes):
            place = start // chunk_bytes
            distance = shadows.get(place, place) - place
            block = bytes_at(base + start + distance * chunk_bytes, size)
            # A copy, as page faults of system calls need full userfaultfd (see `memtide doctor`).
            yield block.cpu().clone().numpy().tobytes()
