"""Checkpoints from what a published step replaced (checkpoint_file.py says how).

The twins of that step hold the old content and stay until it is written; the next step takes new
ones, or waits where there is no room. A chunk that the step did not change is read where it is, and
a later step that would change it waits.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping

from memtide.adopt import Adopter
from memtide.checkpoint_file import Checkpoint, blocks_of
from memtide.errors import MemtideError


class Snapshots:
    """The checkpoints of one process. Asked for and kept in the thread that trains."""

    def __init__(self, adopter: Adopter) -> None:
        self._adopter = adopter
        self._asked: list[Checkpoint] = []
        self._elsewhere: set[int] = set()  # Places that are read where they are.
        self._writer: threading.Thread | None = None
        self._at_exit = False

    @property
    def wanted(self) -> bool:
        """Whether the next step is to keep what it replaces."""
        return bool(self._asked)

    def ask(self, checkpoint: Checkpoint) -> None:
        """To be written from what the next step replaces."""
        self._asked.append(checkpoint)
        asker = threading.get_ident()

        def hurry() -> None:
            # While the thread that trains waits, it makes no step. Others wait for its next one.
            if threading.get_ident() == asker and checkpoint in self._asked:
                self.write_now()

        checkpoint.hurry = hurry
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self.write_now)

    def write_now(self) -> None:
        """Writes what was asked for from where it is, and ends what is read there: chunks are about
        to be changed in place."""
        if self._asked or self._elsewhere:
            self.wait()
        asked, self._asked = self._asked, []
        for checkpoint in asked:
            checkpoint.write(lambda address, size: self._read(address, size, {}))

    def before_step(self, places: Iterable[int]) -> None:
        """A step is about to change these."""
        if self._asked or not self._elsewhere.isdisjoint(places):
            self.wait()

    def wait(self) -> bool:
        """Returns when nothing is being written; whether something was."""
        writer, self._writer = self._writer, None
        if writer is None or not writer.is_alive():
            return False
        writer.join()
        return True

    def keep(self, twins: Mapping[int, int]) -> None:
        """A step has been published; the twins, by place, hold what was asked for, and are ours."""
        asked, self._asked = self._asked, []
        needed = {
            place
            for checkpoint in asked
            for entry in checkpoint.entries
            if entry.address
            for place in self._adopter.places_of(entry.address, max(1, entry.size_bytes))
        }
        self._elsewhere = needed - twins.keys()

        def write() -> None:
            for checkpoint in asked:
                checkpoint.write(lambda address, size: self._read(address, size, twins))
            self._elsewhere = set()
            for twin in twins.values():
                with contextlib.suppress(MemtideError):  # The session may be gone by now.
                    self._adopter.client.free(twin, 1)

        self._writer = threading.Thread(target=write, name="memtide-checkpoint")
        self._writer.start()

    def _read(self, address: int, size_bytes: int, twins: Mapping[int, int]) -> Iterator[bytes]:
        base, chunk_bytes = self._adopter.base, self._adopter.chunk_bytes
        for start, size in blocks_of(address - base, size_bytes, chunk_bytes):
            place = start // chunk_bytes
            moved = twins.get(place, place) - place
            block = self._adopter.bytes_at(base + start + moved * chunk_bytes, size)
            # A copy: a system call may not be allowed to bring chunks.
            yield block.cpu().clone().numpy().tobytes()
