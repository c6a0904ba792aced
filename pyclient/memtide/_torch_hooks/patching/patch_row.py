"""A row of the table of what memtide replaces (patch_table.py). Imports no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memtide._torch_hooks.patching.attributes import Maker
from memtide._torch_hooks.patching.patch_when import When

if TYPE_CHECKING:
    from memtide._torch_hooks.patching.patch_context import Context

Version = tuple[int, int]
OLDEST_TORCH: Version = (2, 5)


@dataclass(frozen=True)
class Patch:
    """One attribute that is replaced."""

    owner: str  # "module", or "module:Class".
    name: str
    why: str
    make: Callable[[Context], Maker | None] = lambda _: None  # None: a runtime makes nothing.
    when: When = When.ALWAYS
    since: Version = OLDEST_TORCH  # The first torch that has it, of those that are supported.
    until: Version | None = None  # The first one that does not have it any more.
    absent: str = ""  # The feature that is off without it; empty: it is required.
    beside: tuple[str, ...] = ()  # Other attributes of the owner that the replacement uses.
    of_subclasses: bool = False  # It is replaced in the owner's subclasses, not in the owner.

    @property
    def module(self) -> str:
        return self.owner.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.name}"

    def is_of(self, owner: Any, name: str) -> bool:
        """Whether it is the row of this attribute of a module or class."""
        owners = (
            owner.__mro__[: None if self.of_subclasses else 1] if isinstance(owner, type) else ()
        )
        names = {f"{kind.__module__}:{kind.__qualname__}" for kind in owners} or {owner.__name__}
        return name == self.name and self.owner in names

    def is_in(self, version: Version) -> bool:
        """Whether that version of torch has it, as far as is known."""
        return self.since <= version and (self.until is None or version < self.until)

    def found(self) -> Any:
        """The owner; None: it is not imported, or has not all that is needed."""
        owner: Any = sys.modules.get(self.module)
        if ":" in self.owner:
            owner = getattr(owner, self.owner.partition(":")[2], None)
        fields = getattr(owner, "__annotations__", {})
        if callable(getattr(owner, self.name, None)) and all(
            name in fields or hasattr(owner, name) for name in self.beside
        ):
            return owner
        return None

    def can_be_found(self) -> bool:
        """Whether it is there once its module is imported, which this does."""
        try:
            importlib.import_module(self.module)
        except ImportError:
            return False
        return self.found() is not None
