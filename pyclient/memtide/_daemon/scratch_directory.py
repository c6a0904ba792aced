"""Directories that live as long as their process, and are removed later if it was killed.

The process holds a lock on the directory itself, which the kernel releases with the process. The
next ScratchDirectory of the same user in the same parent removes those that are not locked. It
leaves all other files in the parent alone, as that may be any directory that a user named.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

# No user would choose this name. It is short, as paths of sockets are limited.
_PREFIX = "memtide-scratch-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class ScratchDirectory:
    """A new directory under `parent`, until `remove`."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        # Another process may take the new directory for a killed one's and remove it before it is
        # locked here.
        while (made := _made_and_locked(parent)) is None:
            pass
        self.path, self._lock = made

    def remove(self) -> None:
        """Removes the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made_and_locked(parent: Path) -> tuple[Path, int] | None:
    """A new directory and the descriptor that locks it. None: it is gone already."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        lock = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if path.exists():  # From here on, no other process removes it.
        # Nor does a program that this process becomes (os.exec*), whose own it is then.
        os.set_inheritable(lock, True)
        return path, lock
    os.close(lock)
    return None


def _sweep(parent: Path) -> None:
    for path in parent.glob(_PREFIX + "*"):
        try:
            lock = os.open(path, _FLAGS)
        except OSError:  # It is gone, another user's, or no directory.
            continue
        try:
            # Root may open those of all users, which are not its own to remove.
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
