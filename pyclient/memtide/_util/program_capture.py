"""Whether torch records the program that runs, so that hooks would become a part of it."""

from __future__ import annotations

import torch


def is_captured() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records what runs now, in this
    thread."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()
