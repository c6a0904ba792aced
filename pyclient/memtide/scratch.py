"""Directories that live as long as a process, and are swept up after it if it was killed.

Each is held by a lock on the directory itself, which the kernel drops with the process. Whoever
makes the next one removes those beside it that nobody holds. What else lies beside them is left
alone: the parent may be any directory that a user named.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

# What nobody would call a directory of theirs; and short, for the paths of sockets.
_PREFIX = "memtide-scratch-"
# Younger ones may be about to be locked by their maker.
_YOUNGEST_SWEPT_S = 60.0


class ScratchDirectory:
    """A new directory under `parent`; `remove` takes it away."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(parent: Path) -> None:
    for path in parent.glob(_PREFIX + "*"):
        try:
            if time.time() - path.lstat().st_mtime < _YOUNGEST_SWEPT_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # Gone already, or another user's.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
