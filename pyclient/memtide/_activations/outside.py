"""Variables outside of modules that a forward pass may change: those that the code it runs names.

A forward pass may count its calls in a global variable, append to a list that its closure has, or
draw from a generator of the script's own. So each function that runs in it is looked at when it
first begins: the globals, closure, defaults and class that its byte code names are compared with
what they are afterwards. Torch's own functions and Python's change nothing of the script's by
themselves, so they are not looked into.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memtide._activations.marks import Marks, Unseen
from memtide._activations.read_state import Reads

_NOT_SCRIPTS = frozenset((*sys.stdlib_module_names, "torch", "numpy", "memtide")) - {"__main__"}
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_ANY_NAME = frozenset(("getattr", "globals", "vars"))
_CHANGED = "it changes variables outside of its modules"
_PROFILED = "a profiler watches it"


class OutsideVariables:
    """The variables that the functions of one forward pass name. Used by one thread."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()
        self._classes: set[type] = set()
        self._places: dict[tuple[int, str], tuple[Mapping[str, Any], Any]] = {}  # With the mark.
        self._objects: dict[int, tuple[Any, Any]] = {}
        self._globals: set[int] = set()  # The ids of functions' own.
        self._reason: str | None = None
        self._imports = 0  # Imports that are going on, each within the last.

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the functions that this thread runs in the block."""
        if sys.getprofile() is not None:
            self._reason = _PROFILED
            yield
            return
        sys.setprofile(self._see)
        try:
            yield
        finally:
            if sys.getprofile() == self._see:
                sys.setprofile(None)
            else:
                self._reason = _PROFILED

    @property
    def reads(self) -> Reads:
        """The names in all functions that ran, and the variables of modules and classes. A global
        counts only where a function loads it: its name may be that of an attribute, too."""
        names = {name for code in self._codes for name in _names_in(code)}
        loaded = {name for code in self._codes for name in _globals_in(code)}
        outside = [
            (space, name)
            for (_, name), (space, _) in self._places.items()
            if name in loaded or id(space) not in self._globals
        ]
        return Reads(frozenset(names), not names.isdisjoint(_ANY_NAME), outside)

    def reason(self) -> str | None:
        """Why the forward pass, which has ended, is not to run again."""
        if self._reason is not None:
            return self._reason
        try:
            places = all(
                Marks().of(space.get(key[1])) == was for key, (space, was) in self._places.items()
            )
            same = places and all(Marks().of(value) == was for value, was in self._objects.values())
        except Unseen as unseen:
            return str(unseen)
        return None if same else _CHANGED

    def _see(self, frame: types.FrameType, event: str, called: Any) -> None:
        is_call = event == "call"
        if frame.f_code is _IMPORT:
            self._imports += is_call - (event == "return")
        if self._imports:
            return  # A module is imported once.
        if self._reason is not None or (is_call and frame.f_code in self._codes):
            return
        space = frame.f_globals
        if not (is_call or event == "c_call") or _is_library_s(space.get("__name__")):
            return
        try:
            if is_call:
                self._codes.add(frame.f_code)
                self._look_at(frame)
            elif called is print:
                self._reason = "it prints"
            else:
                Unseen.check(getattr(called, "__self__", None))
        except Unseen as unseen:
            self._reason = str(unseen)

    def _look_at(self, frame: types.FrameType) -> None:
        code, names = frame.f_code, set(_names_in(frame.f_code))
        self._globals.add(id(frame.f_globals))
        for space, wanted in _spaces(frame.f_globals, names):
            for name in wanted & space.keys():
                self._place(space, name)
        for name in code.co_freevars:
            if name in frame.f_locals:
                self._object(frame.f_locals[name])
        if any(_rebinds_outside(code, each) for each in dis.get_instructions(code)):
            self._reason = _CHANGED
        function = frame.f_globals.get(code.co_name)
        if isinstance(function, types.FunctionType):
            for value in (function.__defaults__, function.__kwdefaults__, vars(function)):
                self._object(value)
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        self._class(first if isinstance(first, type) else type(first))

    def _place(self, space: Mapping[str, Any], name: str) -> None:
        value = space[name]
        if isinstance(value, type):
            self._class(value)
        elif not isinstance(value, types.ModuleType | types.FunctionType):
            self._places.setdefault((id(space), name), (space, Marks().of(value)))

    def _class(self, kind: type) -> None:
        if kind not in self._classes and not _is_library_s(kind.__module__):
            self._classes.add(kind)
            for name, value in vars(kind).items():
                if not callable(value) and not name.startswith("__"):
                    self._place(vars(kind), name)

    def _object(self, value: Any) -> None:
        if not isinstance(value, type | types.FunctionType | types.ModuleType):
            self._objects.setdefault(id(value), (value, Marks().of(value)))


def _rebinds_outside(code: types.CodeType, instruction: dis.Instruction) -> bool:
    """Whether an instruction gives a global, or a variable of the closure, another value."""
    if instruction.opname == "STORE_DEREF":
        return instruction.argval in code.co_freevars
    return instruction.opname == "STORE_GLOBAL"


def _spaces(
    own: Mapping[str, Any], names: set[str]
) -> Iterator[tuple[Mapping[str, Any], set[str]]]:
    """The namespaces that a function uses, each with the names that it may use there."""
    yield own, names
    for name in names & own.keys():
        value = own[name]
        if isinstance(value, types.ModuleType) and not _is_library_s(value.__name__):
            yield vars(value), set(vars(value)) if names & _ANY_NAME else names


def _globals_in(code: types.CodeType) -> Iterable[str]:
    """The names that a function, and those that are made in it, look up outside of it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _globals_in(constant)


def _names_in(code: types.CodeType) -> Iterable[str]:
    """The names of globals and attributes in a function, and in those that are made in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names_in(constant)


@functools.cache
def _is_library_s(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _NOT_SCRIPTS
