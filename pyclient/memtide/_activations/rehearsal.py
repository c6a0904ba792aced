"""Finds out which blocks can be recomputed exactly, and what that costs, in one iteration.

In the rehearsal each block runs as it is, and once more behind it, with the random generators set
back. Its effects are looked for before and after (effects.py); a block that has any is not run a
second time. Saved tensors and outputs must be the same bits in both runs. The result of the first
run is the script's. Its saved tensors leave like those of any other block where the budget is
short, and come back to be compared. The second run is given as much room as the first one took.
Nothing of it is kept.

In the backward pass behind it, a block's saved tensors must be asked for once each: torch's
checkpoint cannot give one twice in a pass. Its input must still be what it was.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from memtide._activations import dear_results, effects, script_choices
from memtide._activations.blocks import bytes_of
from memtide._activations.call_arguments import CallArguments, ForeignArgument, tensors_in
from memtide._activations.effects import State
from memtide._activations.marks import Unseen
from memtide._activations.outside import OutsideVariables
from memtide._activations.random_states import RandomStates
from memtide._activations.read_state import Reads, ReadState, without_new_hooks
from memtide._activations.recompute import (
    Replacer,
    devices_of,
    modules_in,
    parameters_of,
    reason_against_call,
)
from memtide._activations.two_runs import CHANGED_IN_PLACE, FirstRun, SecondRun, same_bits
from memtide._activations.version_counter import version_counter
from memtide._util.devices import gpu_module
from memtide._util.program_capture import is_captured

Function = Callable[..., Any]
_NOT_CALLED = "it was not called in the iteration that was rehearsed"
_COMPILED = "CompiledFunctionBackward"
# torch.func.grad, vjp and hessian begin with this call. Under a checkpoint, they raise.
_TRANSFORMS = "_saved_tensors_hooks_disable"
_COLLECTIVES = ("c10d", "_c10d_functional")


@dataclass
class Rehearsed:
    """The facts about a block. Bytes count each storage once, without parameters."""

    reason: str | None = _NOT_CALLED  # Why it is not to be recomputed; None: it can be.
    forward_s: float = 0.0  # To run its forward pass again.
    input_bytes: int = 0
    dear_bytes: int = 0  # `Mode.REST` keeps them beside the input.
    dear_s: float = 0.0  # To compute that, of `forward_s`.
    saved_bytes: int = 0  # Autograd saves them without recomputation, the input included.
    reads: Reads = field(default_factory=Reads)  # The names in its code.


@dataclass
class _Notes:
    """A rehearsal's notes on one block."""

    result: Rehearsed = field(default_factory=Rehearsed)
    uses: str | None = None  # The script's operation in it that does not go with a checkpoint.
    # Version counters of the first input tensors, with their versions, until backward reaches the
    # block.
    inputs: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    reads: ReadState | None = None  # Until then, too.
    sums: list[int] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        """Keeps the first reason."""
        if self.result.reason in (None, _NOT_CALLED):
            self.result.reason = reason


class Rehearsal:
    """Watches blocks from `open` to `close`. Each block's first call counts."""

    def __init__(self, attributes: Replacer, make_room: Callable[[int], None]) -> None:
        """`attributes` is this object's alone. `make_room` moves what autograd has saved, until
        there is room for a number of bytes, or no more can move."""
        self._attributes = attributes
        self._make_room = make_room
        self._notes: weakref.WeakKeyDictionary[nn.Module, _Notes] = weakref.WeakKeyDictionary()
        self._running: _Notes | None = None
        self._has_said_so = False

    def open(self, blocks: Iterable[nn.Module]) -> None:
        """Begins, before an iteration's first forward pass."""
        for block in blocks:
            self._notes[block] = _Notes()
        for kind in {type(block) for block in self._notes}:
            self._attributes.replace(kind, "_call_impl", self._calling)
        hooks = functools.partial(self._noticing, "a checkpoint or saved-tensor hooks")
        self._attributes.replace(saved_tensors_hooks, "__enter__", hooks)
        self._attributes.replace(CheckpointFunction, "forward", hooks)
        if hasattr(torch._C._autograd, _TRANSFORMS):
            transforms = functools.partial(self._noticing, "function transforms")
            self._attributes.replace(torch._C._autograd, _TRANSFORMS, transforms)

    def close(self) -> dict[nn.Module, Rehearsed]:
        """Ends, after the iteration."""
        self._attributes.undo()
        results = {block: notes.result for block, notes in self._notes.items()}
        for notes in self._notes.values():
            notes.inputs.clear()
            notes.reads = None
        self._notes = weakref.WeakKeyDictionary()
        return results

    @property
    def is_idle(self) -> bool:
        """Whether no block has been called yet: the iteration was another model's."""
        return all(notes.result.reason == _NOT_CALLED for notes in self._notes.values())

    def _noticing(self, what: str, original: Function) -> Function:
        """Something that the script uses within a block."""

        @functools.wraps(original)
        def noticing(*args: Any, **kwargs: Any) -> Any:
            if self._running is not None:
                self._running.uses = what
            return original(*args, **kwargs)

        return noticing

    def _calling(self, original: Function) -> Function:
        @functools.wraps(original)
        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_captured():
                return original(module, *args, **kwargs)
            notes = self._notes.get(module)
            if notes is None or notes.result.reason != _NOT_CALLED or self._running is not None:
                return original(module, *args, **kwargs)
            reason = reason_against_call(module) or effects.reason_against(module)
            try:
                arguments = CallArguments(args, kwargs)
            except ForeignArgument as foreign:
                reason = reason or str(foreign)
            else:
                devices = {t.device for t in arguments.tensors if t.dim()} | devices_of(module)
                if len(devices) > 1:
                    reason = reason or "it is on several devices"
            if reason is not None:
                if torch.is_grad_enabled():  # Else it is an evaluation.
                    notes.refuse(reason)
                return original(module, *args, **kwargs)
            self._running = notes
            try:
                run = functools.partial(original, module)
                return self._rehearse(notes, module, run, arguments, devices, (args, kwargs))
            finally:
                self._running = None

        return _call_impl

    def _rehearse(
        self,
        notes: _Notes,
        block: nn.Module,
        run: Function,
        arguments: CallArguments,
        devices: set[torch.device],
        call: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Any:
        device = next(iter(devices), torch.device("cpu"))
        tensors = arguments.tensors
        before, random = State(block, tensors), RandomStates(device)
        again = arguments.given(tensors)  # Before the block changes its containers.
        first, chosen_before = FirstRun(notes.refuse), script_choices.entered_by_tensor()
        outside = OutsideVariables()
        began_s = time.monotonic()
        with _Watching() as watching, first.recorded(), outside.watched():
            output = run(*call[0], **call[1])
        _synchronizing(tensors_in(output))()
        dear_part = watching.dear_s / (time.monotonic() - began_s)
        notes.result.input_bytes = bytes_of(tensors)
        notes.result.dear_bytes = watching.dear_bytes
        for tensor in tensors:
            first.count(tensor)
        notes.result.saved_bytes = first.bytes
        after, random_after = State(block, tensors), RandomStates(device)
        reason = before.change_to(after) or outside.reason()
        reason = reason or _reason_against_output(output, tensors)
        if notes.uses is not None:
            reason = f"the script has {notes.uses} in it"
        if script_choices.entered_by_tensor() != chosen_before:
            reason = "the script chooses whether what is saved in it stays or leaves"
        if watching.has_collectives:
            reason = "it has collectives"
        if reason is None:
            random.restore()
            self._make_room(first.bytes)
            reason = self._run_again(notes, block, tensors, run, again, first, output)
            # Each run has a speed of its own.
            notes.result.dear_s = dear_part * notes.result.forward_s
            reason = reason or after.change_to(State(block, tensors))
            if reason is None and RandomStates(device) != random_after:
                reason = "it draws another number of random numbers each time"
            random_after.restore()
            if reason not in (None, CHANGED_IN_PLACE):
                self._say_that_it_ran_twice(block)
        first.forget()
        notes.result.reason = reason
        if reason is None:
            notes.inputs = [(version_counter(tensor), tensor._version) for tensor in tensors]
            notes.result.reads = outside.reads
            try:
                notes.reads = ReadState(modules_in(block), outside.reads)
            except Unseen as unseen:
                notes.result.reason = str(unseen)
                return output
            notes.sums = notes.reads.content_sums()
            _before_backward(output, notes)
        return output

    def _run_again(
        self,
        notes: _Notes,
        block: nn.Module,
        tensors: list[torch.Tensor],
        run: Function,
        call: Any,
        first: FirstRun,
        output: Any,
    ) -> str | None:
        synchronize = _synchronizing(tensors_in(output))
        second = SecondRun(first, synchronize)
        synchronize()
        began_s = time.monotonic()
        try:
            with second.compared(), without_new_hooks([*tensors, *parameters_of(block)]):
                again = run(*call[0], **call[1])
        except Exception as error:  # Any that the script's code may raise, if it runs twice.
            return f"its forward pass cannot run twice: {type(error).__name__}"
        synchronize()
        notes.result.forward_s = time.monotonic() - began_s - second.seconds
        if not _all_same(tensors_in(output), tensors_in(again)):
            return "its output differs if it runs again"
        return second.reason()

    def _say_that_it_ran_twice(self, block: nn.Module) -> None:
        if not self._has_said_so:
            self._has_said_so = True
            print(
                f"memtide: {type(block).__name__} did not run alike when it ran twice, to see "
                "whether it can be recomputed. If it keeps a state that memtide does not see, "
                "results differ from plain torch's from here on; with activations='keep' for it "
                "(docs/activations.md) it runs once.",
                file=sys.stderr,
            )


class _Watching(TorchDispatchMode):
    """Sees the operations of a block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dear_bytes = 0
        self.dear_s = 0.0
        self.has_collectives = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in dear_results.DEAR:
            output = func(*args, **(kwargs or {}))
        else:
            synchronize = _synchronizing(tensors_in(args))
            synchronize()
            began_s = time.monotonic()
            output = func(*args, **(kwargs or {}))
            synchronize()
            self.dear_s += time.monotonic() - began_s
            self.dear_bytes += bytes_of(tensors_in(output))
        self.has_collectives |= func.namespace in _COLLECTIVES
        return output


def _before_backward(output: Any, notes: _Notes) -> None:
    """Looks at the inputs, and at what else the block has read, when backward reaches it."""

    def look(_gradients: Any) -> None:
        if any(tensor._version != version for tensor, version in notes.inputs):
            notes.refuse("its input is changed in place before backward")
        notes.inputs.clear()
        if notes.reads is None:
            return
        with notes.reads.restored() as is_same:
            if not is_same or notes.reads.content_sums() != notes.sums:
                notes.refuse("a variable that it reads is changed in place before backward")
        notes.reads = None

    for tensor in tensors_in(output):
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(look)


def _reason_against_output(output: Any, inputs: list[torch.Tensor]) -> str | None:
    outputs = list(tensors_in(output))
    if not any(tensor.grad_fn is not None for tensor in outputs):
        return "autograd saves nothing of it"
    storages = {tensor.untyped_storage()._cdata for tensor in inputs}
    if any(
        tensor.untyped_storage()._cdata in storages and all(tensor is not each for each in inputs)
        for tensor in outputs
    ):
        return "its output is a view of its input"
    before = {tensor.grad_fn for tensor in inputs}
    nodes = [tensor.grad_fn for tensor in outputs]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen or node in before:
            continue
        seen.add(node)
        if node.name() == _COMPILED:
            return "it has compiled regions"
        nodes.extend(following for following, _ in node.next_functions)
    return None


def _all_same(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    first, second = list(one), list(other)
    return len(first) == len(second) and all(map(same_bits, first, second))


def _synchronizing(tensors: Iterable[torch.Tensor]) -> Callable[[], None]:
    tensor = next(iter(tensors), None)
    module = None if tensor is None else gpu_module(tensor.device.type)
    if module is None or tensor is None:
        return lambda: None
    return functools.partial(module.synchronize, tensor.device)
