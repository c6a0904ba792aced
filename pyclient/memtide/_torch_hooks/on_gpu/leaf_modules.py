"""Runs leaf modules of torch itself without lease dispatch, where chunks do not all fit on a GPU.

The tensors that `nn.Linear.forward` accesses are known: its parameters, its input, and its result.
So one lease on its parameters' chunks answers for all operations in it, if its input is in no
chunk, and no operation has to be seen. The same is true of the autograd node that it ends in. A
module is run like that if

- it is exactly of a class in `LEAVES`, whose `forward` is torch's own;
- it has no hooks, and torch has no global hooks but memtide's, because these run within its call;
- lease dispatch has seen it once, since its parameters were put where they are, and saw that it
  touches no other chunk and writes none;
- memtide's mode is the only one in this thread;
- autocast does not cast its weights.

So do update functions of optimizers for parameters that are in no chunk, as small ones are.
Everything else runs under lease dispatch, as does the node if hooks pack its saved tensors: to
unpack may be to run any code, such as a whole forward pass (torch.utils.checkpoint).

If memory is short in a forward pass, chunks are evicted and it is run again: it has changed nothing
but an input that it overwrites, which takes no memory. Nothing can run a node again, so nodes go
without lease dispatch only while iterations leave headroom (DeviceOomHandler.has_headroom).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from memtide._capi.client import Places
from memtide._memory.device_oom import DeviceOomHandler, is_shortage
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.module_parameters import ModuleParameters
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._torch_hooks.op_schema import touches_none
from memtide._util.program_capture import is_captured
from memtide.errors import ResourceExhausted

Function = Callable[..., Any]

# By class, the parameters that it may have.
LEAVES: dict[type[nn.Module], tuple[str, ...]] = {
    **dict.fromkeys((nn.Linear, nn.LayerNorm, nn.GroupNorm), ("weight", "bias")),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), ("weight", "bias")),
    **dict.fromkeys((nn.RMSNorm, nn.Embedding), ("weight",)),
    **dict.fromkeys((nn.GELU, nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softmax), ()),
}
# Classes whose weights autocast casts: lease dispatch has to see the copies (autocast_copies.py).
_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Nodes behind the one that does a leaf's work: views of that node's result.
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward1")
_NO_PLACES = Places(())
_NO_BACKWARD = -1


class LeafModules:
    """The leaf modules of one process. Its replacements may be called in any thread."""

    def __init__(
        self, memory: ManagedMemory, module_hooks: ModuleHooks, elastic: DeviceOomHandler
    ) -> None:
        self._addresses = memory.addresses
        self._ledger = memory.ledger
        self._novelty = memory.novelty
        self._copies = memory.copies
        self._module_hooks = module_hooks
        self._elastic = elastic
        self._headroom: bool | None = None  # In this iteration, once it was asked for.
        self._codes: set[Any] = set()  # The code of the functions that `calling` has made.
        # By thread, what its node leases, and the mode that is off, from the node's prehook to its
        # hook. A node that raises calls no hook; autograd puts the mode back.
        self._open: dict[int, tuple[Places, LeaseDispatchMode | None]] = {}

    def begin_iteration(self) -> None:
        """Before the first forward pass after an optimizer's step."""
        self._headroom = None

    def settle(self) -> None:
        """Ends the leases of nodes that raised, in this thread and, if no other thread of Python's
        could be in a backward pass, in those of autograd. Others end with their next node."""
        alone = threading.active_count() == 1
        in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
        for thread in list(self._open):
            if thread == threading.get_ident() or (alone and not in_backward):
                self._end_node(thread)

    def close(self) -> None:
        """Ends all leases of nodes. REQUIRES: no node runs."""
        for thread in list(self._open):
            self._end_node(thread)

    def calling(self, kind: type[nn.Module], original: Function) -> Function:
        """`_call_impl` of one class of leaf modules, which a call of a module ends in."""
        forward = kind.forward
        is_torch_s = forward.__module__ == kind.__module__

        @functools.wraps(original)
        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                not is_captured()
                and len(args) == 1
                and not kwargs
                and type(module) is kind
                and is_torch_s
                and kind.forward is forward
                and self._is_unhooked(module)
                and self._is_outside(args[0])
            ):
                return self._call(module, args[0], original)
            return original(module, *args, **kwargs)

        self._codes.add(_call_impl.__code__)  # type: ignore[attr-defined]
        return _call_impl

    def skip_calls(self, eval_frame: Any) -> None:
        """Makes torch.compile leave calls of leaf modules as they are unless it compiles what calls
        them, as it does with torch's own. `eval_frame`: torch._dynamo.eval_frame. A torch that has
        no strategies of code compiles nothing on a GPU (compiled_leases.py)."""
        if hasattr(eval_frame, "set_code_exec_strategy"):
            skip = eval_frame.FrameAction.SKIP
            for code in self._codes:
                strategy = eval_frame.FrameExecStrategy(skip, skip)
                eval_frame.set_code_exec_strategy(code, strategy)

    @contextlib.contextmanager
    def running(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Around one of torch's update functions of optimizers, which accesses its arguments alone:
        without lease dispatch, if none of them is in a chunk."""
        mode = None
        if touches_none(self._addresses, arguments.values()) and self._has_headroom():
            mode = mode_stack.pop_alone(LeaseDispatchMode)
        try:
            yield
        finally:
            if mode is not None:
                mode_stack.push(mode)

    def _call(self, module: nn.Module, value: torch.Tensor, original: Function) -> Any:
        mode = mode_stack.alone(LeaseDispatchMode)
        if mode is None:
            return original(module, value)
        if not module._parameters:
            self._novelty.see_leaf(module, value)
            return self._run(module, value)
        if (
            type(module) in _CAST
            and value.device == self._addresses.device
            and torch.is_autocast_enabled(value.device.type)
        ):
            return original(module, value)
        known = self._module_hooks.look_at(module)
        if known.is_leaf is None:
            return self._observe(module, value, mode, known, original)
        if not known.is_leaf:
            return original(module, value)
        self._novelty.see_leaf(module, value)
        self._module_hooks.prepare(known)
        try:
            self._ledger.begin_use(known.places, _NO_PLACES)
        except ResourceExhausted:
            return original(module, value)
        try:
            output = self._run(module, value)
        finally:
            self._ledger.end_use(known.places, _NO_PLACES)
        self._watch_backward(module, value, known, output)
        return output

    def _run(self, module: nn.Module, value: torch.Tensor) -> Any:
        mode = mode_stack.pop_alone(LeaseDispatchMode)
        try:
            return module.forward(value)
        except RuntimeError as error:
            if mode is None or not is_shortage(error):
                raise
            short = error
        finally:
            if mode is not None:  # Else a covered phase has begun.
                mode_stack.push(mode)
        return self._elastic.retry(short, lambda: module.forward(value))

    def _observe(
        self,
        module: nn.Module,
        value: torch.Tensor,
        mode: LeaseDispatchMode,
        known: ModuleParameters,
        original: Function,
    ) -> Any:
        """Runs a module under lease dispatch, to see whether it needs that."""
        reads, writes = mode.observed = set(), set()
        try:
            output = original(module, value)
        finally:
            mode.observed = None
        if not self._ledger.holding:
            known.is_leaf = (
                known.has_exactly(LEAVES[type(module)], module)
                and not writes
                and reads <= set(known.places.numbers)
            )
        return output

    def _watch_backward(
        self, module: nn.Module, value: torch.Tensor, known: ModuleParameters, output: torch.Tensor
    ) -> None:
        if not known.trained or not torch.is_grad_enabled():
            return
        packs = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        node = None if packs or not self._has_headroom() else _working_node(value, output)
        if node is None:
            self._module_hooks.watch_backward(known, output)
            return
        node.register_prehook(functools.partial(self._before_node, weakref.ref(module), known))
        node.register_hook(self._after_node)

    def _has_headroom(self) -> bool:
        if self._headroom is None:
            self._headroom = self._elastic.has_headroom(0)
        return self._headroom and not self._elastic.is_shrunk

    def _before_node(
        self, module: weakref.ref[nn.Module], known: ModuleParameters, gradients: tuple[Any, ...]
    ) -> None:
        self._module_hooks.before_backward(known)
        leaf = module()
        if (
            not self._addresses.here
            or not self._ledger.active
            or leaf is None
            or not known.is_current(leaf)
            or self._elastic.is_shrunk
            or mode_stack.alone(LeaseDispatchMode) is None
            or not all(each is None or self._is_outside(each) for each in gradients)
        ):
            return
        thread = threading.get_ident()
        self._end_node(thread)  # An earlier one that raised.
        try:
            self._ledger.begin_use(known.places, _NO_PLACES)
        except ResourceExhausted:
            return
        self._open[thread] = known.places, mode_stack.pop_alone(LeaseDispatchMode)

    def _after_node(self, _made: Any, _gradients: Any) -> None:
        mode = self._end_node(threading.get_ident())
        if mode is not None:
            mode_stack.push(mode)

    def _end_node(self, thread: int) -> LeaseDispatchMode | None:
        """Ends what a thread's node leases, if there is one, and returns the mode that is off."""
        places, mode = self._open.pop(thread, (_NO_PLACES, None))
        self._ledger.end_use(places, _NO_PLACES)
        return mode

    def _is_unhooked(self, module: nn.Module) -> bool:
        """Whether a call of a module does no more than its class's forward and memtide's hooks."""
        own = int(self._module_hooks.watching)
        return not (
            module._forward_pre_hooks
            or module._forward_hooks
            or module._backward_pre_hooks
            or module._backward_hooks
            or torch_modules._global_backward_pre_hooks
            or torch_modules._global_backward_hooks
            or len(torch_modules._global_forward_pre_hooks) > own
            or len(torch_modules._global_forward_hooks) > own
            or "forward" in module.__dict__
            or torch._C._get_tracing_state() is not None
        )

    def _is_outside(self, value: Any) -> bool:
        """Whether it is a dense tensor of torch's own class that is in no chunk."""
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return False
        try:
            return not (self._addresses.in_range(value.data_ptr()) or self._copies.holds(value))
        except RuntimeError:  # It only stands for others, as under vmap.
            return False


def _working_node(value: torch.Tensor, output: Any) -> Any:
    """The autograd node of a leaf's own that does its work; None: it has none."""
    node, before = output.grad_fn, value.grad_fn
    while node is not None and node is not before and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return None if node is before else node
