"""Memtide's saved-tensor hooks in each thread of the script.

Default saved-tensor hooks belong to a thread. Autograd gives its own threads those of the thread
that called `backward`, so only threads of the script have to be looked after. While a script has
hooks of its own (torch.utils.checkpoint, save_on_cpu), those are on top, and memtide's are not
called: what those save is left alone. The inputs that a checkpoint saves do come here.

Torch's function transforms (`torch.func.grad`, `vjp`, `hessian`) refuse to run under default hooks.
They disable hooks while they run; before that, memtide's are taken off this thread, those of a
rehearsal and of a recomputed block included, and they are put back when the transform enables hooks
again. A block's checkpoint counts what is saved: within a transform, in neither of its passes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memtide._util.origin import is_memtide_s

_hooks = torch._C._autograd
Function = Callable[..., Any]


class _CheckpointHooks(threading.local):
    """Pairs of hooks that torch has set in this thread for checkpoints of memtide's."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Function, Function]] = []


_of_checkpoints = _CheckpointHooks()


@contextlib.contextmanager
def in_checkpoint() -> Iterator[None]:
    """Within a block of which torch has just set a checkpoint's hooks for memtide."""
    _of_checkpoints.pairs.append(_hooks._top_saved_tensors_default_hooks(False))
    try:
        yield
    finally:
        _of_checkpoints.pairs.pop()


def _is_ours(pair: tuple[Function, Function]) -> bool:
    return is_memtide_s(pair[0]) or pair in _of_checkpoints.pairs


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
        """Sets the hooks in this thread if it has none, and may have some; returns whether."""
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
            pairs = []
            while (pair := _hooks._top_saved_tensors_default_hooks(True)) and _is_ours(pair):
                _hooks._pop_saved_tensors_default_hooks()
                pairs.append(pair)
            if pairs:  # Else this is a transform within another one.
                self._thread.are_set = self.are_set and self._pair not in pairs
                self._thread.waiting = pairs
            original(message, *args, **kwargs)

        return disable

    def enabling(self, original: Function) -> Function:
        """torch._C._autograd._saved_tensors_hooks_enable, at the end of a function transform."""

        @functools.wraps(original)
        def enable() -> None:
            original()
            waiting, self._thread.waiting = getattr(self._thread, "waiting", []), []
            for pair in reversed(waiting):
                _hooks._push_saved_tensors_default_hooks(*pair)
                self._thread.are_set = self.are_set or pair == self._pair

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
