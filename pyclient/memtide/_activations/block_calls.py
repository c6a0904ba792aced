"""The running calls of the model's repeated blocks, in each thread.

Each class of blocks gets a `_call_impl` that notes when a call begins and ends. A block that runs
within another one, in a backward pass (a recomputation) or without gradients is not noted.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn

from memtide._activations.call_arguments import tensors_in
from memtide._activations.kept_storages import KeptStorage
from memtide._activations.recompute import Recompute, Replacer
from memtide._util.program_capture import is_captured

Function = Callable[..., Any]
_NO_BACKWARD = -1


class Call:
    """One call of a block that runs now."""

    __slots__ = ("block", "inputs", "is_first", "is_recomputed", "latest", "micro_batch")

    def __init__(self, block: int, micro_batch: int, inputs: set[int]) -> None:
        self.block = block  # Its number, in the order of forward passes.
        self.micro_batch = micro_batch
        self.inputs = inputs  # The storages that it was given: valid while the call runs.
        self.is_first = False  # In the iteration.
        self.is_recomputed = False
        # The storage saved latest, if it is of a result that has no gradient.
        self.latest: KeptStorage | None = None


class BlockCalls:
    """Watches calls of blocks, from `watch` to `close`."""

    def __init__(
        self,
        attributes: Replacer,
        recompute: Recompute,
        begun: Callable[[Call, Hashable], None],
        ended: Callable[[Call], None],
    ) -> None:
        """`attributes` is this object's alone. `begun` and `ended` are called when a call begins
        and has ended. Its arguments had the shapes of the second argument."""
        self._attributes = attributes
        self._recompute = recompute
        self._numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._counts: list[int] = []  # Calls of each block in this iteration.
        self._shapes: list[Hashable] = []
        self._thread = threading.local()
        self._begun, self._ended = begun, ended

    def watch(self, blocks: Sequence[nn.Module]) -> None:
        """Begins. REQUIRES: the blocks are in the order of their forward passes, and no block
        runs."""
        # Recomputation runs within the watched call: tensors that it saves then belong to the call.
        self._recompute.prepare(blocks)
        self._numbers = weakref.WeakKeyDictionary({b: i for i, b in enumerate(blocks)})
        self._counts = [0] * len(blocks)
        for kind in {type(block) for block in blocks}:
            self._attributes.replace(kind, "_call_impl", self._calling)

    def close(self) -> None:
        """Ends."""
        self._attributes.undo()
        self._numbers.clear()

    @property
    def running(self) -> Call | None:
        """The block that runs in this thread."""
        return getattr(self._thread, "call", None)

    def end_iteration(self) -> tuple[Hashable, ...]:
        """Returns the shapes that blocks were given, in the order of their calls."""
        self._counts = [0] * len(self._counts)
        shapes, self._shapes = tuple(self._shapes), []
        return shapes

    def _calling(self, original: Function) -> Function:
        @functools.wraps(original)
        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_captured():
                return original(module, *args, **kwargs)
            number = self._numbers.get(module)
            if (
                number is None
                or self.running is not None
                or not torch.is_grad_enabled()
                or torch._C._current_graph_task_id() != _NO_BACKWARD
            ):
                return original(module, *args, **kwargs)
            call = self._begin(number, args, kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._thread.call = None
                self._ended(call)

        return _call_impl

    def _begin(self, number: int, args: Any, kwargs: Any) -> Call:
        tensors = [t for t in tensors_in([args, kwargs]) if type(t) in _PLAIN]
        call = Call(number, self._counts[number], _storages_of(tensors))
        self._counts[number] += 1
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        call.is_first = not self._shapes
        self._shapes.append(shapes)
        self._begun(call, shapes)
        self._thread.call = call
        return call

    def note_recomputation(self) -> None:
        """The call that runs in this thread is recomputed."""
        call = self.running
        if call is not None:
            call.is_recomputed = True


_PLAIN = (torch.Tensor, nn.Parameter)


def _storages_of(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors if t.layout is torch.strided}
