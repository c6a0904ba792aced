"""Takes one dispatch mode off this thread's stack, and puts it back where it was.

`with mode:` can only enter and leave the mode on top. A script may enter modes of its own above
memtide's, and leaves them again by taking off whatever is on top, so each must stay where it is.

Autograd runs each node with a copy of the modes of the thread that called `backward`. A mode that a
node's prehook takes off is off for that node and its own hooks, and on again for the next node; the
same is true of a mode that a hook puts back.

Torch's own modes (fake tensors, tracing) lie below all others, one at most of each kind, and stay
there. They do not count in depths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Mode = TypeVar("Mode", bound=TorchDispatchMode)

_length = torch._C._len_torch_dispatch_stack
_at = torch._C._get_dispatch_stack_at
_pop = torch._C._pop_torch_dispatch_stack
_push = torch._C._push_on_torch_dispatch_stack


def depth_of(mode: TorchDispatchMode) -> int | None:
    """How many modes are below this one; None: it is not on the stack."""
    stack = [_at(index) for index in range(_length() - _length_of_stack(), _length())]
    return next((depth for depth, each in enumerate(stack) if each is mode), None)


def is_alone(mode: TorchDispatchMode) -> bool:
    """Whether this is the only mode, torch's own included."""
    return _length() == 1 and _at(0) is mode


def take_off(mode: TorchDispatchMode) -> int:
    """Takes a mode off, and returns its depth. REQUIRES: it is on the stack, once."""
    above: list[TorchDispatchMode] = []
    while (top := _pop(None)) is not mode:
        above.append(top)
    depth = _length_of_stack()
    _push_all(above)
    return depth


def put_back(mode: TorchDispatchMode, depth: int) -> None:
    """Puts a mode back below all but `depth` modes. Modes that were entered since stay above it; if
    there are fewer modes now, it is on top. REQUIRES: it is not on the stack."""
    above = [_pop(None) for _ in range(_length_of_stack() - depth)]
    _push(mode)
    _push_all(above)


def alone(kind: type[Mode]) -> Mode | None:
    """The only mode, if it is of exactly this class; None: there are others, or none."""
    if _length() != 1:
        return None
    mode = _at(0)
    return mode if type(mode) is kind else None


def pop_alone(kind: type[Mode]) -> Mode | None:
    """As `alone`, and takes it off; `push` puts it back."""
    mode = alone(kind)
    if mode is not None:
        _pop(None)
    return mode


def push(mode: TorchDispatchMode) -> None:
    """Puts a mode on top."""
    _push(mode)


@contextlib.contextmanager
def without(mode: TorchDispatchMode) -> Iterator[None]:
    """Runs a block without a mode, if this thread has it."""
    if depth_of(mode) is None:
        yield
        return
    depth = take_off(mode)
    try:
        yield
    finally:
        put_back(mode, depth)


def _push_all(above: list[TorchDispatchMode]) -> None:
    while above:
        _push(above.pop())


def _length_of_stack() -> int:
    """How many modes there are, without torch's own."""
    own = (getattr(_at(index), "_mode_key", None) is not None for index in range(_length()))
    return _length() - sum(own)
