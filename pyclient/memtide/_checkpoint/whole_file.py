"""Files that appear under their name only when they are complete, and stay there after a power cut.

The file is written under a name of its own in the same directory, is locked meanwhile, and takes
its name when its bytes are on stable storage. The lock ends with the process, so the next writer of
the same name removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".part"
_LONGEST_PREFIX = 200  # A name has at most 255 bytes, and the random part and the suffix take 21.


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes the place of `path` when the block has ended.

    If the block or a system call raises, the new file is removed, and `path` is what it was.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        prefix = f".{os.fsdecode(os.fsencode(path.name)[:_LONGEST_PREFIX])}."
        _remove_abandoned(directory, prefix)
        name, descriptor = _make(directory, prefix)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
                os.replace(name, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):  # The error that is raised says more.
                os.unlink(name, dir_fd=directory)
            raise
        # Without this, a power cut may bring the old file back although the caller has returned.
        os.fsync(directory)
    finally:
        os.close(directory)


def _make(directory: int, prefix: str) -> tuple[str, int]:
    """The name and the descriptor of a new file, which this process has locked."""
    while True:
        name = f"{prefix}{secrets.token_hex(8)}{_SUFFIX}"
        # O_EXCL: neither a file nor a link that another user has put there is opened.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o666, dir_fd=directory)
        # A file system without locks has none for _remove_abandoned either, which then removes
        # nothing.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # Another writer took it for abandoned before it was locked.


def _remove_abandoned(directory: int, prefix: str) -> None:
    """Removes files of killed writers of the same name."""
    for name in os.listdir(directory):
        if not name.startswith(prefix) or not name.endswith(_SUFFIX):
            continue
        with contextlib.suppress(OSError):  # It is in use, another user's, or gone.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=directory)
            finally:
                os.close(descriptor)
