"""The script's writes go nowhere: `memtide plan train.py` must not touch what a run has written.

Files that it opens to write are copies in a scratch folder, which it reads again; folders that it
makes and files that it removes stay as they are. Code that still writes elsewhere, and programs
that the script starts, fail as if the file system were read-only. Writes of a library from C++ are
not seen.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memtide._torch_hooks.patching.attributes import Function
from memtide._torch_hooks.patching.later_patches import LaterPatches

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {
    os: ("mkdir", "rmdir", "remove", "unlink", "truncate", "chmod", "chown", "utime"),
    shutil: ("rmtree",),
}
_OF_TWO_PATHS = {os: ("rename", "replace", "symlink", "link"), shutil: ("move",)}
_STARTS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


class NoWrites:
    """Holds for the rest of the process. Not thread-safe in one point: two threads that open one
    new file have a copy each."""

    def __init__(self, scratch: Path) -> None:
        """`scratch`: an absolute path; writes in it, and to devices, are let through."""
        self._scratch = str(scratch)
        self._copies: dict[str, str] = {}
        self._attributes = LaterPatches()

    def install(self) -> None:
        """From now on."""
        for module in (builtins, io):
            self._attributes.replace(module, "open", self._open)
        for changes, paths in ((_CHANGES, 1), (_OF_TWO_PATHS, 2)):
            make = functools.partial(self._unless_outside, paths=paths)
            for module, names in changes.items():
                for name in names:
                    self._attributes.replace(module, name, make)
        sys.addaudithook(self._audit)

    def _is_free(self, path: Any) -> bool:
        """Whether it may be written: in the scratch folder, a device, or an open descriptor."""
        if isinstance(path, int):
            return True
        full = os.path.realpath(os.fsdecode(path))
        return full.startswith((self._scratch + os.sep, "/dev/", "/proc/")) or full == self._scratch

    def _open(self, original: Function) -> Function:
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = bool(set(mode) & set("wax+"))
            if not (writes or self._copies) or self._is_free(file):
                return original(file, mode, *args, **kwargs)
            full = os.path.realpath(os.fsdecode(file))
            if writes and full not in self._copies:
                copy = os.path.join(self._scratch, f"copy-{len(self._copies)}")  # noqa: PTH118
                if "w" not in mode and Path(full).is_file():
                    shutil.copyfile(full, copy)
                elif "r" in mode:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
                self._copies[full] = copy
            return original(self._copies.get(full, file), mode, *args, **kwargs)

        return open

    def _unless_outside(self, original: Function, *, paths: int) -> Callable[..., Any]:
        """`paths`: how many of the arguments are paths."""

        def change(*args: Any, **kwargs: Any) -> Any:
            if all(self._is_free(path) for path in [*args, *kwargs.values()][:paths]):
                return original(*args, **kwargs)
            return None

        return change

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if path is not None and flags & _WRITES and not self._is_free(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        elif event in _STARTS:
            raise PermissionError(errno.EPERM, "memtide plan starts no programs of the script's")
