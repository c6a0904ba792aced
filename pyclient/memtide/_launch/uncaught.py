"""How Python shows what a script under `memtide run` does not catch: as without memtide."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from memtide._launch.program import run_program
from memtide.errors import NoRoom

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# Errors that only a mistake in memtide raises in a function of its own: its frames say where.
_MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError)


@contextlib.contextmanager
def uncaught(lacking_room: Callable[[], str | None]) -> Iterator[None]:
    """A context in which the script runs. From the end of it on, tracebacks are shown without the
    frames of memtide. If there was no room for the script's states, the process ends with what
    `lacking_room` returns in their place, if it is not None."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, NoRoom) and (line := lacking_room()) is not None:
            raise SystemExit(f"memtide: {line}") from None
        _hide_own_frames()
        raise


def _hide_own_frames() -> None:
    show = sys.excepthook  # The script may have set it.

    def excepthook(
        kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        error.__traceback__ = _shown(frames, all_of_mistake=isinstance(error, _MISTAKES))
        _clean_chain(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _clean_chain(error: BaseException) -> None:
    """The exceptions that `error` followed: those that only memtide met are not shown."""
    seen = {id(error)}
    while (earlier := error.__cause__ or error.__context__) is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        earlier.__traceback__ = _shown(earlier.__traceback__)
        if earlier.__traceback__ is None:
            error.__cause__ = error.__context__ = None
            return
        error = earlier


def _shown(frames: TracebackType | None, *, all_of_mistake: bool = False) -> TracebackType | None:
    """A traceback from the script's first frame on, without those of memtide."""
    entries_shown: list[TracebackType] = []
    own = False
    entries = frames
    while entries is not None:
        code = entries.tb_frame.f_code
        # A function of Python's library that memtide calls, such as a wait for its threads, is its
        # own, too.
        calls_library = own and not all_of_mistake and _is_in_library(code.co_filename)
        own = code.co_filename.startswith(_PACKAGE) or calls_library
        if code is run_program.__code__:
            entries_shown.clear()
        elif not own or all_of_mistake:
            entries_shown.append(entries)
        entries = entries.tb_next
    if all_of_mistake and not own:
        return _shown(frames)
    shown: TracebackType | None = None
    for entry in reversed(entries_shown):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def _is_in_library(path: str) -> bool:
    installed = ("site-packages", "dist-packages")
    return path.startswith(_STANDARD_LIBRARY) and not any(part in path for part in installed)
