"""Replaces attributes of classes and modules that are not memtide's, and puts them back.

This is the only file that assigns to them (tools/tidy, rule `foreign-attributes`). All that is
replaced is listed in patch_table.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from memtide._util.import_hook import after_import

Function = Callable[..., Any]
Maker = Callable[[Function], Function]  # Takes what is replaced, and returns what replaces it.
_ABSENT = object()


class Attributes:
    """The attributes that are replaced, each with what makes it as it was."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Maker) -> None:
        """Replaces one attribute. REQUIRES: the owner has it, or inherits it."""
        before = vars(owner).get(name, _ABSENT)
        replacement: Any = make(getattr(owner, name))
        if isinstance(before, staticmethod):
            replacement = staticmethod(replacement)
        self._undo.append(functools.partial(_put_back, owner, name, before))
        setattr(owner, name, replacement)

    def replace_steps(self, base: type, make: Maker) -> None:
        """Replaces `step` of the subclasses of torch's Optimizer that torch has wrapped already: it
        does that at a class's first instance. `undo` puts back also those that torch wraps later,
        by a `profile_hook_step` that ends in `make`. REQUIRES: `make` returns `marked` functions.
        """
        self._undo.append(functools.partial(_put_back_steps, base))
        for kind in _subclasses(base):
            step: Any = vars(kind).get("step")
            if hasattr(step, "hooked") and not is_marked(step):
                setattr(kind, "step", make(step))  # noqa: B010  mypy: step is no variable.

    def when_imported(self, module: str, act: Callable[[Any], None]) -> None:
        """Calls `act` with a module: now, or once it is imported, but not after `undo`."""
        self._undo.append(after_import(module, lambda: act(sys.modules[module])))

    def undo_also(self, undo: Callable[[], None]) -> None:
        """Calls a function when this is undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Puts back everything, the newest first: of two replacements the older one knows what was
        there before memtide."""
        while self._undo:
            self._undo.pop()()


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is not _ABSENT:
        setattr(owner, name, before)
    elif name in vars(owner):  # It was inherited.
        delattr(owner, name)


def _put_back_steps(base: type) -> None:
    for kind in _subclasses(base):
        step: Any = vars(kind).get("step")
        if getattr(step, "_memtide", None) is step is not None:
            original = step.__wrapped__
            if hasattr(step, "hooked"):
                original.hooked = True  # Else torch would wrap it once more.
            setattr(kind, "step", original)  # noqa: B010


def _subclasses(base: type) -> Iterator[type]:
    kind: type
    for kind in base.__subclasses__():
        yield kind
        yield from _subclasses(kind)


def marked(replacement: Function) -> Function:
    """The function, to be known as memtide's. functools.wraps copies the mark to the wrappers that
    others put around it. REQUIRES: what it replaced is its __wrapped__."""
    replacement._memtide = replacement  # type: ignore[attr-defined]
    return replacement


def is_marked(function: Any) -> bool:
    """Whether a function is memtide's, or a wrapper around one of memtide's."""
    return hasattr(function, "_memtide")
