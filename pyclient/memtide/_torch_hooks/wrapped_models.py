"""Models that a script wraps in DistributedDataParallel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from memtide._torch_hooks.patching.attributes import Function


def wrapping_models(on_wrapping: Callable[[nn.Module, nn.Module], None], original: Function) -> Any:
    """torch.nn.parallel.DistributedDataParallel.__init__."""

    @functools.wraps(original)
    def __init__(wrapping: nn.Module, *args: Any, **kwargs: Any) -> None:
        model = args[0] if args else kwargs.get("module")
        if isinstance(model, nn.Module):
            on_wrapping(wrapping, model)
        original(wrapping, *args, **kwargs)

    return __init__
