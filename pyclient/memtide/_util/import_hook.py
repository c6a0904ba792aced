"""Calls a function right after the script imports a module, without importing it earlier."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType


class _ActingLoader(importlib.abc.Loader):
    """Loads a module with the loader `inner`, then calls `act`."""

    def __init__(self, inner: importlib.abc.Loader, act: Callable[[], None]) -> None:
        self._inner = inner
        self._act = act

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._act()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module with the other finders of `sys.meta_path`, until it has been imported.

    Libraries ask with `importlib.util.find_spec` whether a module is there, and import it later, or
    not at all.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._thread = threading.local()  # Its `asks`: the thread asks the other finders.

    def cancel(self) -> None:
        """Leaves the import as it would be, also one that has begun."""
        self._act = lambda: None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or getattr(self._thread, "asks", False):
            return None
        self._thread.asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._thread.asks = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _ActingLoader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        act = self._act
        self.cancel()
        act()


def after_import(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Calls `act` once, after module `name` is imported; at once if it is imported already. Returns
    a function that cancels this."""
    if name in sys.modules:
        act()
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    return finder.cancel
