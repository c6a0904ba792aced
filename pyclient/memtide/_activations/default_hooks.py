"""Memtide's saved-tensor hooks in each thread of the script.

Default saved-tensor hooks belong to a thread. Autograd gives its own threads those of the thread
that called `backward`, so only threads of the script have to be looked after. While a script has
hooks of its own (torch.utils.checkpoint, save_on_cpu), those are on top, and memtide's are not
called: what those save is left alone. The inputs that a checkpoint saves do come here.

Torch's function transforms (`torch.func.grad`, `vjp`, `hessian`) refuse to run under default hooks.
They disable hooks while they run; before that, memtide's are taken off this thread, and they are
put back when the transform enables hooks again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

_hooks = torch._C._autograd
Function = Callable[..., Any]


class DefaultHooks:
    """A pair of hooks, and the threads that have it."""

    def __init__(self, pack: Function, unpack: Function) -> None:
        self._pair = (pack, unpack)
        self._thread = threading.local()

    @property
    def are_set(self) -> bool:
        """Whether this thread has the hooks, below others perhaps."""
        return getattr(self._thread, "are_set", False)

    def set(self) -> None:
        """Sets the hooks in this thread, unless it has them."""
        if not self.are_set:
            _hooks._push_saved_tensors_default_hooks(*self._pair)
            self._thread.are_set = True

    def set_alone(self) -> bool:
        """Sets the hooks in this thread if it has none at all, and may have some; returns whether."""
        is_enabled = _hooks._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        if not is_enabled or _hooks._top_saved_tensors_default_hooks(True) is not None:
            return False
        self.set()
        return True

    def unset(self) -> bool:
        """Takes the hooks off this thread, if they are on top there; returns whether."""
        if not self.are_set or _hooks._top_saved_tensors_default_hooks(True) != self._pair:
            return False
        _hooks._pop_saved_tensors_default_hooks()
        self._thread.are_set = False
        return True

    def disabling(self, original: Function) -> Function:
        """torch._C._autograd._saved_tensors_hooks_disable, which raises if hooks are set."""

        @functools.wraps(original)
        def disable(message: str, *args: Any, **kwargs: Any) -> None:
            if self.unset():
                self._thread.is_waiting = True
            original(message, *args, **kwargs)

        return disable

    def enabling(self, original: Function) -> Function:
        """torch._C._autograd._saved_tensors_hooks_enable, at the end of a function transform."""

        @functools.wraps(original)
        def enable() -> None:
            original()
            if getattr(self._thread, "is_waiting", False):
                self._thread.is_waiting = False
                self.set()

        return enable

    def starting_threads(self, original: Function) -> Function:
        """threading.Thread.start: a thread that is started by one with hooks has them, too."""

        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if not self.are_set:
                original(thread)
                return
            run = thread.run

            @functools.wraps(run)
            def run_with_hooks() -> None:
                self.set()
                try:
                    run()
                finally:
                    self.unset()

            thread.run = run_with_hooks  # type: ignore[method-assign]
            original(thread)

        return start
