"""The models that a script has offloaded itself, with `memtide.offload`.

A process has one runtime for all of them, from the first call until the last model has left. A
notebook's cell that is run again adds its new model; the old one leaves when it is collected.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from memtide._activations.budget import Budget
from memtide._memory.adoption import adopt_gradient, restore, restore_state
from memtide._memory.held_tensors import held_by, in_attributes_of
from memtide._telemetry.recorder import Recorder
from memtide._torch_hooks import runtime as runtimes


class Offloading:
    """The runtime of a process, and the models that it manages now. Used between steps."""

    def __init__(
        self, runtime: runtimes.Runtime, recorder: Recorder, budget: Budget | None
    ) -> None:
        self.recorder = recorder
        self.budget = budget
        self._runtime = runtime
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @property
    def is_open(self) -> bool:
        """Whether the process is managed by this runtime."""
        return runtimes.current() is self._runtime

    def add(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Moves a model's tensors into chunks."""
        runtime = self._runtime
        self._models.add(model)
        self._optimizers.update(optimizers)
        runtime.names.know(model)
        # Frozen parameters come first, so that scripts with the same ones have equal chunks of
        # them, whatever they train beside.
        parameters = sorted(model.parameters(), key=lambda p: p.requires_grad)
        for tensor in (*parameters, *_held_by_all(model)):
            runtime.managed.name(tensor)
        for parameter in parameters:
            runtime.module_hooks.adopt_parameter(parameter)
            adopt_gradient(runtime.memory, parameter)
        for optimizer in optimizers:
            runtime.states.adopt(optimizer)
            runtime.wrap_own_step(optimizer)

    def remove(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Moves a model's tensors back to ordinary memory, but for those that another model has,
        too. With the last model, the runtime ends."""
        if not self.is_open:
            return
        self._models.discard(model)
        left = list(self._models)
        if not left:
            self.close()
            return
        runtime = self._runtime
        runtime.module_hooks.settle()
        runtime.offloaded.speculative.take(None)
        runtime.offloaded.speculative.forget()
        others_ids = {id(tensor) for other in left for tensor in _held_by_all(other)}
        for tensor in _held_by_all(model):
            if id(tensor) not in others_ids:
                runtime.managed.forget(tensor)
                runtime.module_hooks.forget_hook(tensor)
                _restore(runtime, tensor)
        for optimizer in optimizers:
            restore_state(runtime.memory, optimizer.state)
        runtime.memory.pressure.trim_all()

    def close(self) -> None:
        """Moves everything back to ordinary memory, and takes the hooks out of torch."""
        if not self.is_open:
            return
        runtime = self._runtime
        adopted = runtime.module_hooks.adopted()
        runtimes.stop()
        for tensor in adopted:
            _restore(runtime, tensor)
        for optimizer in {*self._optimizers, *runtime.states.optimizers}:
            restore_state(runtime.memory, optimizer.state)
        runtime.memory.pressure.trim_all()


class Offloaded:
    """A model whose parameters, gradients and optimizer state are in memtide's chunks.

    `close`, or the end of its `with` block, moves them back to the process's own memory.

        offloaded = memtide.offload(model, optimizer, host_pool="2GiB")
        train(model, optimizer)
        print(offloaded.stats()["moved_bytes"])
        offloaded.close()
    """

    def __init__(
        self, offloading: Offloading, model: nn.Module, optimizers: list[Optimizer]
    ) -> None:
        self._offloading = offloading
        self._model = model
        self._optimizers = optimizers
        self._closed = False

    def stats(self) -> dict[str, Any]:
        """The cost of the run so far, of all models that are offloaded: the keys and values that
        `memtide run --stats` writes."""
        budget = self._offloading.budget
        return self._offloading.recorder.finish(budget.as_json() if budget else None).as_json()

    def close(self) -> None:
        """Moves the model's tensors back to ordinary memory. With the last model that is offloaded,
        the hooks leave torch."""
        if not self._closed:
            self._closed = True
            self._offloading.remove(self._model, self._optimizers)

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _held_by_all(model: nn.Module) -> list[torch.Tensor]:
    modules = list(model.modules())
    return [t for module in modules for t in (*held_by(module), *in_attributes_of(module))]


def _restore(runtime: runtimes.Runtime, tensor: torch.Tensor) -> None:
    for managed in runtime.memory.addresses.managed_in([tensor, tensor.grad]):
        restore(runtime.memory, managed)
