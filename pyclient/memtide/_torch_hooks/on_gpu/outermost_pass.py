"""Finds the end of a forward pass: that of the outermost module, of one thread.

Torch calls a module's own forward hooks before the call returns or raises, also while there are no
global ones. So the module has such a hook while it runs; a copy of the model, or a file of it, is
not to have one, so it goes as soon as it was called. It stays a little longer after an error, when
torch walks over the hooks themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# A scripted module takes no hook. The layer chooses other kernels, with other bits, where a module
# of its own has one.
_TAKE_NO_HOOK = (torch.jit.ScriptModule, nn.TransformerEncoderLayer)


class OutermostPass:
    """The pass that runs, if there is one. Other threads may call the module, not these methods."""

    def __init__(self, at_end: Callable[[nn.Module], None]) -> None:
        """`at_end` is called when the pass has ended."""
        self._at_end = at_end
        self._module: nn.Module | None = None
        self._thread = threading.get_ident()
        self._hooks: list[Any] = []  # The last one is of the module, if there is one.

    def begin(self, module: nn.Module) -> bool:
        """To be called before a module's forward. False: it is within another one, or its end
        cannot be seen."""
        if self._module is not None or isinstance(module, _TAKE_NO_HOOK):
            return False
        self._remove_hooks()
        self._hooks.append(module.register_forward_hook(self._end, always_call=True))
        self._module = module
        return True

    def leave(self) -> None:
        """Ends the pass, if there is one, without `at_end`. A script may have left it by an
        exception for which torch calls no hooks, such as KeyboardInterrupt."""
        self._module = None
        self._remove_hooks()

    def _end(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module is not self._module or threading.get_ident() != self._thread:
            return
        self._module = None
        if sys.exc_info()[0] is None:
            self._remove_hooks()
        self._at_end(module)

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
