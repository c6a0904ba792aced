"""Calls a function right before the script makes its first parameter, or first uses one.

A session takes a part of the node's memory, so a process has none before it needs one: a launcher,
a data loader's worker and a compiler's worker never do.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from memtide._torch_hooks.patching.attributes import Function
from memtide._torch_hooks.patching.later_patches import LaterPatches
from memtide._util.import_hook import after_import


class FirstParameter:
    """Calls `act` once. Torch is imported by then, unless a caller of `come` is earlier."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._attributes = LaterPatches()
        self._lock = threading.RLock()  # A thread waits while another one acts.
        self._acted = False
        after_import("torch", self._watch)

    def come(self) -> None:
        """Calls `act` now, if it has not been called."""
        with self._lock:
            if not self._acted:
                self._acted = True
                self._attributes.undo()
                self._act()

    def _watch(self) -> None:
        if self._acted:
            return
        from torch.nn import Module
        from torch.optim import Optimizer

        self._attributes.replace(Module, "register_parameter", self._registering)
        # A model that was unpickled has registered no parameter here.
        self._attributes.replace(Module, "__call__", self._calling)
        self._attributes.replace(Optimizer, "add_param_group", self._adding_groups)

    def _registering(self, original: Function) -> Function:
        @functools.wraps(original)
        def register_parameter(module: Any, name: str, param: Any) -> None:
            if param is not None:
                self.come()
            original(module, name, param)

        return register_parameter

    def _calling(self, original: Function) -> Function:
        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if module._parameters:
                self.come()
                return module(*args, **kwargs)
            return original(module, *args, **kwargs)

        return __call__

    def _adding_groups(self, original: Function) -> Function:
        @functools.wraps(original)
        def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            from torch.optim import Optimizer

            self.come()
            return Optimizer.add_param_group(optimizer, *args, **kwargs)

        return add_param_group
