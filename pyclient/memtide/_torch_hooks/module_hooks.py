"""Module hooks: they lease a module's own parameters before its forward and its backward pass.

Nothing here can change a result: the hooks return nothing, and backward is observed by pre-hooks of
autograd nodes that exist anyway. An access that no hook has leased is a page fault.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.modules import module as torch_modules

from memtide._capi.client import Access, Kind, Places
from memtide._memory.address_map import address_of
from memtide._memory.adoption import adopt, adopt_gradient
from memtide._memory.held_tensors import held_by, in_attributes_of
from memtide._memory.leases import Lease
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_parts import parts_of
from memtide._memory.tensor_references import TensorReference, reference_to
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks.around_step.ordinary_gradients import OrdinaryGradients
from memtide._torch_hooks.device_side import DeviceSide
from memtide._torch_hooks.module_names import ModuleNames
from memtide._torch_hooks.module_parameters import ManagedParameters, ModuleParameters
from memtide._torch_hooks.on_gpu.lease_dispatch import LeaseDispatchMode
from memtide._util.program_capture import is_captured
from memtide._util.step_phase import Step, StepPhase

_BACKWARD_DEPTH = 2
NO_BACKWARD = -1
# The rows of arenas of parameters (arenas.py).
_PARAMETERS, _BUFFERS = 0, 1


class ModuleHooks(StepPhase):
    """The module hooks of one runtime."""

    def __init__(
        self,
        memory: ManagedMemory,
        observer: Observer,
        managed: ManagedParameters,
        names: ModuleNames,
        device: DeviceSide,
        on_gradient: Callable[[torch.Tensor], None],
        gradients: OrdinaryGradients | None,
    ) -> None:
        """`on_gradient` is called for each parameter whose gradient was accumulated, after the
        gradient's adoption. `gradients`: says when there is none; None: there always is."""
        self._memory = memory
        self._addresses = memory.addresses
        self._names = names
        self._ledger = memory.ledger
        # In host memory each access without a lease is a page fault, new or not.
        self._novelty = memory.novelty if memory.ledger.strict else None
        self._observer = observer
        self._managed = managed
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, ModuleParameters] = (
            weakref.WeakKeyDictionary()
        )
        # The adopted parameters in their order, each with its gradient hook if it is trained.
        self._adopted: weakref.WeakKeyDictionary[TensorReference, Any] = weakref.WeakKeyDictionary()
        self._forward = threading.local()
        self._backward: deque[list[Lease]] = deque()
        self._ends_awaited = False
        self._stepped = False
        self._watching: list[Any] = []  # The handles of the global hooks.
        self._wanted = False  # Whether they are to be registered while they are not hidden.
        self._hidden = 0
        self._lock = threading.Lock()  # For these three.
        self._device = device
        self._gradients = gradients
        self._on_gradient = on_gradient

    @property
    def sampling(self) -> bool:
        """Whether the observer needs the moments of modules now."""
        return self._observer.sampling

    @property
    def watching(self) -> bool:
        """Whether the module hooks are registered."""
        return bool(self._watching)

    def watch(self) -> None:
        """Registers the module hooks, unless they are registered."""
        with self._lock:
            self._wanted = True
            self._register()

    def unwatch(self) -> None:
        """Removes the module hooks: with global hooks, torch calls each module some microseconds
        slower."""
        with self._lock:
            self._wanted = False
            self._register()

    def hide(self) -> None:
        """Removes the module hooks until `show`. Calls may nest, and be in several threads."""
        with self._lock:
            self._hidden += 1
            self._register()

    def show(self) -> None:
        """Ends a `hide`."""
        with self._lock:
            self._hidden -= 1
            self._register()

    def _register(self) -> None:
        if not self._wanted or self._hidden:
            while self._watching:
                self._watching.pop().remove()
        elif not self._watching:
            self._watching = [
                torch_modules.register_module_forward_pre_hook(self.before_forward),
                torch_modules.register_module_forward_hook(self.after_forward, always_call=True),
            ]

    def before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        """Global forward pre-hook."""
        if self._novelty is not None and not is_captured():
            self._novelty.enter_module(module, inputs)
            if self._ledger.active and not torch.is_grad_enabled():
                self._device.begin_evaluation(module)
        if _holds_nothing(module) or is_captured() or not self._addresses.here:
            return
        known = self.prepare(self.look_at(module))
        token = self._ledger.lease(known.places, Access.READ)
        if token is not None:
            self._stack().append((module, token))

    def prepare(self, known: ModuleParameters) -> ModuleParameters:
        """Before a forward pass of a module with parameters: reports it."""
        self.begin_forward()
        self._observer.moment("forward", known.name)
        return known

    def after_forward(self, module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        """Global forward hook; also called if forward raises."""
        if self._novelty is not None:
            self._novelty.leave_module(module)
        if _holds_nothing(module) or is_captured():
            return
        stack = self._stack()
        if stack and any(entry is module for entry, _ in stack):
            while stack:
                entry, token = stack.pop()
                token.release()
                if entry is module:
                    break
        known = self._known.get(module)
        if known is not None and known.trained and torch.is_grad_enabled():
            self.watch_backward(known, output)

    def watch_backward(self, known: ModuleParameters, output: Any) -> None:
        """Leases for a trained module again when backward comes to its output."""
        if self._ledger.active or self._observer.sampling:
            node = _node_of(output)
            if node is not None:
                node.register_prehook(lambda _gradients: self.before_backward(known))

    def begin_forward(self) -> bool:
        """Called before a forward pass. Returns whether it is to be leased for, or reported."""
        if self._stepped:
            self._stepped = False
            self._memory.pressure.free_dead_gradients()
            self._device.begin_iteration()
        if self._ends_awaited and torch._C._current_graph_task_id() == NO_BACKWARD:
            self._ends_awaited = False  # Torch calls no callbacks where backward raises.
        if self._ledger.active:
            self._device.begin_phase()
        return self._ledger.active or self._observer.sampling

    def run_region(self, known: ModuleParameters, run: Callable[[], Any]) -> Any:
        """Runs a compiled region with the leases of a module's forward pass, and of its backward
        pass later. REQUIRES: `begin_forward` has returned true."""
        self._observer.moment("forward", known.name)
        token = self._ledger.lease(known.places, Access.READ)
        try:
            output = run()
        finally:
            if token is not None:
                token.release()
        if known.trained and torch.is_grad_enabled():
            self.watch_backward(known, output)
        return output

    @contextlib.contextmanager
    def gathering(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Leases these shards, this rank's, while torch gathers the whole parameters from all
        ranks."""
        if not self._ledger.active or not self._addresses.here:
            yield
            return
        forward = torch._C._current_graph_task_id() == NO_BACKWARD
        self._observer.moment("forward" if forward else "backward", "all_gather")
        places = Places(place for t in tensors for place in self._addresses.element_places(t))
        token = self._ledger.lease(places, Access.READ)
        try:
            yield
        finally:
            if token is not None:
                token.release()

    def forget_hooks(self) -> None:
        """Removes the gradient hooks from all parameters."""
        for handle in self._adopted.values():
            if handle is not None:
                handle.remove()
        self._adopted.clear()

    def forget_hook(self, parameter: torch.Tensor) -> None:
        """Removes the gradient hook from a parameter, which gets other bytes and hooks now."""
        handle = self._adopted.pop(reference_to(parameter), None)
        if handle is not None:
            handle.remove()
            if not parameter._post_accumulate_grad_hooks:
                # Torch makes hooks work when it makes their dictionary, for the bytes of then.
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]

    def before_step(self, step: Step) -> None:
        self.settle()

    def settle(self) -> None:
        """Releases every lease. For other threads' forward and backward passes, which may run, this
        costs page faults."""
        self._stack().clear()
        self._backward.clear()
        self._ends_awaited = False
        self._ledger.release_all()

    def end_iteration(self) -> None:
        """Records that an optimizer has stepped: before the next forward pass, the chunks of
        gradients that the script has dropped are freed."""
        self._stepped = True

    def adopt_parameter(self, parameter: torch.Tensor) -> None:
        """Moves a parameter into a chunk, and from now on its gradients."""
        for part in parts_of(parameter):
            self._adopt(part, _PARAMETERS)

    def adopt_buffer(self, buffer: torch.Tensor) -> None:
        """Moves into a chunk what a module holds beside parameters. Such tensors may be written in
        each forward pass, so they have chunks of their own."""
        for part in parts_of(buffer):
            if not part.requires_grad:
                self._adopt(part, _BUFFERS)

    def _adopt(self, tensor: torch.Tensor, row: int) -> None:
        memory = self._memory
        if not memory.addresses.here or not adopt(memory, tensor, Kind.PARAMETER, row):
            return
        reference = reference_to(tensor)
        handle = self._adopted.get(reference)
        if handle is None:
            if tensor.requires_grad and tensor.is_leaf:
                handle = tensor.register_post_accumulate_grad_hook(self._after_gradient)
            self._adopted[reference] = handle
        self._device.adopted(tensor)

    def adopted(self) -> list[torch.Tensor]:
        """The parameters that are in chunks, and what modules hold beside them, in the order of
        their adoption."""
        # Other threads may adopt, so this is a copy made at once.
        references = [ref() for ref in self._adopted.keyrefs()]
        return [p for ref in references if ref is not None and (p := ref()) is not None]

    def models(self) -> set[torch.nn.Module]:
        """The models of which modules have run."""
        return {self._names.root_of(module) for module in list(self._known)}

    def _after_gradient(self, parameter: torch.Tensor) -> None:
        # During a hold nothing leaves the device, and the gradient is dropped before anything may.
        if not self._addresses.here or self._ledger.holding:
            return
        if self._gradients is not None and self._gradients.stay:
            return
        # Adoption leases for itself, and allocates no device memory.
        mode = mode_stack.pop_alone(LeaseDispatchMode)
        try:
            adopt_gradient(self._memory, parameter)
        finally:
            if mode is not None:
                mode_stack.push(mode)
        self._on_gradient(parameter)

    def look_at(self, module: torch.nn.Module) -> ModuleParameters:
        """Adopts what a module holds, and returns what is known of it now."""
        before = self._known.get(module)
        held = held_by(module)
        addresses = [address_of(t) for t in held]
        trained = any(t.requires_grad for t in held)
        if before is not None and before.addresses == addresses and before.trained == trained:
            return before
        known = ModuleParameters(self._names.of(module))
        for parameter in module._parameters.values():
            if parameter is not None and parameter in self._managed:
                self.adopt_parameter(parameter)
        if before is None:
            self._adopt_beside(module)
        held = held_by(module)
        managed = [t for t in held if self._addresses.manages(t)]
        known.addresses = [address_of(t) for t in held]
        known.places = Places(place for t in managed for place in self._addresses.span_places(t))
        known.trained = trained
        known.parameters = [reference_to(t) for t in managed]
        self._known[module] = known
        return known

    def _adopt_beside(self, module: torch.nn.Module) -> None:
        """Adopts what a module holds beside parameters, once: a script may put another buffer in
        the place of one in each step. A module that belongs to no model stays as it is, as a data
        loader's forked workers, which inherit no chunks, may use it, too."""
        if next(self._names.root_of(module).parameters(), None) is None:
            return
        for tensor in (*module._buffers.values(), *in_attributes_of(module)):
            if tensor is not None and tensor in self._managed:
                self.adopt_buffer(tensor)

    def before_backward(self, known: ModuleParameters) -> None:
        """Before the pass of a module through backward, in any thread."""
        if not self._addresses.here:
            return
        self._observer.moment("backward", known.name)
        if not self._ledger.active:
            return
        while len(self._backward) >= _BACKWARD_DEPTH:
            self._release_oldest()
        tokens = [self._ledger.lease(known.places, Access.READ)]
        gradients = self._gradient_places(known)
        if gradients.count:
            tokens.append(self._ledger.lease(gradients, Access.WRITE))
        self._backward.append([token for token in tokens if token is not None])
        if not self._ends_awaited:
            self._ends_awaited = True
            Variable._execution_engine.queue_callback(self._end_backward)

    def _gradient_places(self, known: ModuleParameters) -> Places:
        gradients = [p.grad for ref in known.parameters if (p := ref()) is not None]
        return Places(
            place
            for gradient in gradients
            if gradient is not None and self._addresses.manages(gradient)
            for place in self._addresses.span_places(gradient)
        )

    def _end_backward(self) -> None:
        self._ends_awaited = False
        while self._backward:
            self._release_oldest()

    def _release_oldest(self) -> None:
        with contextlib.suppress(IndexError):  # Another thread, which steps, has cleared them.
            for token in self._backward.popleft():
                token.release()

    def _stack(self) -> list[tuple[torch.nn.Module, Lease]]:
        stack: list[tuple[torch.nn.Module, Lease]] | None = getattr(self._forward, "stack", None)
        if stack is None:
            stack = self._forward.stack = []
        return stack


def _holds_nothing(module: torch.nn.Module) -> bool:
    return not module._parameters and not module._buffers


def _node_of(output: Any) -> Any:
    """The autograd node of the first tensor in a module's output that has one."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        for item in output:
            node = _node_of(item)
            if node is not None:
                return node
    return None
