"""The origin of a function or a class."""

from __future__ import annotations

import functools
from typing import Any


def is_memtide_s(function: Any) -> bool:
    """Whether a hook, or a class, is memtide's."""
    while isinstance(function, functools.partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith("memtide.")
