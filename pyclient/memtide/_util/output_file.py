"""Checks the path of a file that is written at the end of a run, before the run begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memtide.errors import UsageError


def check_writable(path: Path) -> None:
    """UsageError: no file can be written at `path`. A file that is there already is not changed."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"no directory to write '{path}' to")
    if path.is_dir():
        raise UsageError(f"'{path}' cannot be written: it is a directory")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise UsageError(f"'{path}' cannot be written: permission denied")
        return
    try:
        # Not all directories that root may write to take new files: /proc, a full disk.
        tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from None
