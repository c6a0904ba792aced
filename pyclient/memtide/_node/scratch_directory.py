"""Directories that live as long as their process, and are removed later if it was killed.

The process holds a lock on the directory itself, which the kernel releases with the process. The
next ScratchDirectory in the same parent removes those that are not locked. It leaves all other
files in the parent alone, as that may be any directory that a user named.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

# No user would choose this name. It is short, as paths of sockets are limited.
_PREFIX = "memtide-scratch-"
# A younger directory may not have been locked yet by the process that made it.
_YOUNGEST_SWEPT_S = 60.0


class ScratchDirectory:
    """A new directory under `parent`, until `remove`."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Removes the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(parent: Path) -> None:
    for path in parent.glob(_PREFIX + "*"):
        try:
            if time.time() - path.lstat().st_mtime < _YOUNGEST_SWEPT_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # The directory is gone, or another user's.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
