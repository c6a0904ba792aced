"""Finds the repeated blocks of a script's model, from the calls of its modules in one iteration.

A block is a module of a class of which one module, or one forward pass, calls three or more, each
of them once: a layer of a transformer. Only the outermost ones are blocks. Modules of torch's own
without children are none, as what they keep is little more than their input; nor is one that is
called twice in a forward pass, as it is shared.

A forward pass ends where a module that stands in no other is called again.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from memtide._activations.call_arguments import tensors_in
from memtide._util.program_capture import is_captured

_FEWEST = 3
_MOST_CALLS = 200_000
_NO_BACKWARD = -1


@dataclass(frozen=True)
class Block:
    """A repeated block, as it was called."""

    module: nn.Module
    name: str  # Its path in the module that stands in no other, such as "layers.3".
    calls: int  # In the iteration: one for each micro-batch.
    forward_s: float  # The shortest call, without waiting for a GPU.
    input_bytes: int  # Bytes of the tensors that it was given, each storage once; the most.


@dataclass
class _Call:
    module: weakref.ref[nn.Module]
    began_s: float
    input_bytes: int
    forward_s: float = 0.0
    is_trained: bool = False  # It returned a tensor that requires a gradient.
    children: list[_Call] = field(default_factory=list)


class BlockFinder:
    """Watches calls of modules, from `open` to `close`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._top: list[_Call] = []
        self._count = 0
        self._thread = threading.local()

    def open(self) -> None:
        """Begins to watch, before an iteration's first forward pass."""
        self._handles = [
            torch_modules.register_module_forward_pre_hook(self._enter),
            torch_modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> list[Block]:
        """Ends watching, after the iteration. Returns the blocks in the order of their calls."""
        while self._handles:
            self._handles.pop().remove()
        passes = _passes(self._top)
        names = _names(self._top)
        self._top = []
        found: dict[nn.Module, list[_Call]] = {}
        shared: set[nn.Module] = set()
        for calls in passes:
            counts = Counter(id(call.module()) for call in _all(calls))
            blocks = list(_blocks_among(calls, counts))
            for call in _all(calls):
                module = call.module()
                if module is not None and counts[id(module)] > 1:
                    shared.add(module)
            for call in blocks:
                module = call.module()
                if module is not None:
                    found.setdefault(module, []).append(call)
        return [
            Block(
                module,
                names.get(module) or f"{type(module).__name__} {number}",
                len(calls),
                min(call.forward_s for call in calls),
                max(call.input_bytes for call in calls),
            )
            for number, (module, calls) in enumerate(found.items())
            if module not in shared
        ]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if (
            is_captured()
            or torch._C._current_graph_task_id() != _NO_BACKWARD
            or self._count >= _MOST_CALLS
        ):
            return
        self._count += 1
        call = _Call(weakref.ref(module), time.monotonic(), bytes_of(tensors_in(inputs)))
        stack = self._stack()
        (stack[-1].children if stack else self._top).append(call)
        stack.append(call)

    def _leave(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if is_captured():
            return
        stack = self._stack()
        if not any(call.module() is module for call in stack):
            return
        while (call := stack.pop()).module() is not module:
            pass  # It raised before it could be left.
        call.forward_s = time.monotonic() - call.began_s
        call.is_trained = any(tensor.requires_grad for tensor in tensors_in(output))

    def _stack(self) -> list[_Call]:
        stack: list[_Call] | None = getattr(self._thread, "stack", None)
        if stack is None:
            stack = self._thread.stack = []
        return stack


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of what these tensors lie in, each storage once; parameters do not count."""
    storages = {}
    for tensor in tensors:
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _passes(top: list[_Call]) -> list[list[_Call]]:
    passes: list[list[_Call]] = []
    seen: set[nn.Module | None] = set()
    for call in top:
        module = call.module()
        if not passes or module in seen:
            passes.append([])
            seen = set()
        passes[-1].append(call)
        seen.add(module)
    return passes


def _names(top: list[_Call]) -> dict[nn.Module, str]:
    """The paths of modules; empty for those that stand in no other."""
    names: dict[nn.Module, str] = {}
    for root in {call.module(): None for call in top}:
        if root is not None:
            for name, module in root.named_modules():
                names.setdefault(module, name)
    return names


def _all(calls: list[_Call]) -> Iterable[_Call]:
    for call in calls:
        yield call
        yield from _all(call.children)


def _blocks_among(siblings: list[_Call], counts: Counter[int]) -> Iterable[_Call]:
    kinds = [_kind_of(call, counts) for call in siblings]
    numbers = Counter(kind for kind in kinds if kind is not None)
    for call, kind in zip(siblings, kinds, strict=True):
        if kind is not None and numbers[kind] >= _FEWEST:
            yield call
        else:
            yield from _blocks_among(call.children, counts)


def _kind_of(call: _Call, counts: Counter[int]) -> Any:
    """A value that blocks of one row have in common; None: this is no block."""
    module = call.module()
    if module is None or counts[id(module)] > 1 or not call.is_trained:
        return None
    children = tuple(type(child) for child in module.children())
    if not children and type(module).__module__.startswith("torch.nn."):
        return None
    # A Sequential is what is in it.
    return (type(module), children) if isinstance(module, nn.Sequential) else type(module)
