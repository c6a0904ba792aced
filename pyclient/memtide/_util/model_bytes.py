"""The count of a model's bytes, without torch; _memory/outside.py counts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ModelBytes:
    """The bytes of parameters, buffers, and what belongs to them: all of them, and by the reason
    those in ordinary memory."""

    total: int = 0
    outside: Counter[str] = field(default_factory=Counter)
