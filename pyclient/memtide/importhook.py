"""Acting right after a module is imported, without importing it earlier than the script does."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _ActingLoader(importlib.abc.Loader):
    """Loads by another loader, then acts."""

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
    """Finds one module, once, by the other finders."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return None
        spec.loader = _ActingLoader(spec.loader, self._act)
        return spec


def after_import(name: str, act: Callable[[], None]) -> None:
    """Calls `act` once when module `name` has been imported; now, if it has been."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Finder(name, act))
