"""A folder that the processes of one `memtide run` share: they inherit its path in MEMTIDE_RUN.

The process of `memtide run` makes it, and removes it at its end. It has the options of the run, and
says which process has trained, and which one writes the files that the options name. The writer
keeps its summary there, in case it is killed.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from memtide._daemon.scratch_directory import ScratchDirectory
from memtide._launch.on_path import memtide_unmanaged
from memtide.errors import Unavailable

_OPTIONS, _TRAINED, _WRITER, _WRITTEN = "options", "trained", "writer", "written"
_SUMMARY = "summary"


class RunFolder:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = 0  # The process that made it.
        self._scratch: ScratchDirectory | None = None

    @classmethod
    def create(cls) -> RunFolder:
        """Makes the folder of the run that this process is."""
        scratch = ScratchDirectory(Path(tempfile.gettempdir()))
        folder = cls(scratch.path)
        folder._owner, folder._scratch = os.getpid(), scratch
        return folder

    def announce(self, inherited: Any) -> None:
        """From now on, Python processes that this one starts are of this run, and may `read` what
        `inherited` is."""
        (self.path / _OPTIONS).write_bytes(pickle.dumps(inherited))
        os.environ[memtide_unmanaged.VARIABLE] = str(self.path)
        on_path = str(Path(memtide_unmanaged.__file__).parent)
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        if on_path not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([*paths, on_path])
        if on_path not in sys.path:  # multiprocessing sends it to the processes that it spawns.
            sys.path.append(on_path)

    def read(self) -> Any:
        """The options that the run has announced. FileNotFoundError: the run has ended.
        Unavailable: the folder is another user's, who may have made it anew where one of this user
        was."""
        return self._load(_OPTIONS)

    def _load(self, name: str) -> Any:
        try:
            with (self.path / name).open("rb") as file:
                if os.fstat(file.fileno()).st_uid == os.geteuid():
                    return pickle.load(file)
        except PermissionError:
            pass
        raise Unavailable(
            f"{self.path}, which {memtide_unmanaged.VARIABLE} names, is not of this user: start "
            "the process as the user of memtide run"
        )

    def mark_trained(self) -> None:
        """An optimizer has stepped in a managed process."""
        if self.path.is_dir():
            (self.path / _TRAINED).touch()

    @property
    def has_trained(self) -> bool:
        """Whether an optimizer has stepped in any managed process of the run."""
        return (self.path / _TRAINED).exists()

    def claim_outputs(self) -> bool:
        """Whether this process is the one that writes the run's files: the first to ask."""
        try:
            with (self.path / _WRITER).open("x", encoding="ascii") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return self.writer == os.getpid()
        except FileNotFoundError:  # The run has ended: no other process will ask.
            return True
        return True

    @property
    def writer(self) -> int:
        """The process that writes the run's files; 0: there is none yet."""
        try:
            return int((self.path / _WRITER).read_text(encoding="ascii") or 0)
        except FileNotFoundError:
            return 0

    def mark_written(self) -> None:
        """The process that writes the run's files has printed its summary and written them."""
        if self.path.is_dir():
            (self.path / _WRITTEN).touch()

    @property
    def is_written(self) -> bool:
        """Whether the writer has done that."""
        return (self.path / _WRITTEN).exists()

    def keep_summary(self, summary: Any) -> None:
        """Keeps the summary of this process up to now. REQUIRES: it is the writer. OSError: there
        is no room, or the run has ended."""
        part = self.path / f"{_SUMMARY}.part"
        part.write_bytes(pickle.dumps(summary))
        part.replace(self.path / _SUMMARY)

    @property
    def kept_summary(self) -> Any:
        """The latest summary that the writer has kept; None: there is none."""
        try:
            return self._load(_SUMMARY)
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Removes the folder, in the process that made it."""
        if self._scratch is not None and self._owner == os.getpid():
            self._scratch.remove()
            self._scratch = None
