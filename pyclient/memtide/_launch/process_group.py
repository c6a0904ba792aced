"""torch.distributed.init_process_group: it says when it has returned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memtide._torch_hooks.patching.attributes import Function, is_marked, marked
from memtide._torch_hooks.patching.later_patches import LaterPatches

_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")

_act: Callable[[], None] | None = None


def watch(act: Callable[[], None], patches: LaterPatches) -> None:
    """From torch's import on, `act` is called after each init_process_group, in all ranks at the
    same point. A forked child's `act` replaces the one that it has from its parent."""
    global _act
    _act = act

    def initializing(original: Function) -> Function:
        if is_marked(original):  # The one module has it from the other.
            return original

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            if _act is not None:
                _act()

        return marked(init_process_group)

    def replace(module: Any) -> None:
        if hasattr(module, "init_process_group"):
            patches.replace(module, "init_process_group", initializing)

    for name in _MODULES:
        patches.when_imported(name, replace)
