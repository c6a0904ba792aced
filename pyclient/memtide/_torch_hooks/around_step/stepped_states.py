"""The optimizers that step, their states in chunks, and the sizes of what they step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.optim import Optimizer

from memtide._memory.adoption import adopt_state_of
from memtide._memory.chunk_size import Parameter
from memtide._memory.gathering import gather_parameters
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.outside import model_bytes
from memtide._telemetry.observer import Observer
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._torch_hooks.module_parameters import ManagedParameters
from memtide._util.step_phase import Step, StepPhase


class SteppedStates(StepPhase):
    """The states of one runtime's parameters."""

    def __init__(
        self,
        memory: ManagedMemory,
        managed: ManagedParameters,
        module_hooks: ModuleHooks,
        observer: Observer,
        *,
        gathers: bool,
    ) -> None:
        """`gathers`: parameters in nearly empty chunks may be moved together."""
        self._memory = memory
        self._managed = managed
        self._module_hooks = module_hooks
        self._observer = observer
        self._gathers = gathers
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # As they were when an optimizer last made its first step: by then models are whole.
        self.parameters: list[Parameter] = []

    def before_step(self, step: Step) -> None:
        if self._gathers:
            self._gathers = False
            gather_parameters(self._memory, self._module_hooks.adopted())
        if step.is_first:
            self._memory.arenas.lay_out(p for g in step.optimizer.param_groups for p in g["params"])
        if not step.is_lean:
            self._adopt_replaced(step.optimizer)
            self.adopt(step.optimizer)
        if step.is_first:
            # Now, too: the step may need more than there is room for.
            self.parameters = self._list(born=False)

    def after_step(self, step: Step) -> None:
        if not step.is_lean:
            self.adopt(step.optimizer)
        if step.is_first:
            self.parameters = self._list(born=True)
            self._observer.count_model(model_bytes(self._memory, self._module_hooks.models()))

    def _adopt_replaced(self, optimizer: Optimizer) -> None:
        """Moves parameters into chunks that the script has put into the optimizer's groups since:
        no module may have them."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not self._memory.addresses.manages(parameter) and parameter in self._managed:
                    self._module_hooks.adopt_parameter(parameter)

    def adopt(self, optimizer: Optimizer) -> None:
        """Moves what the optimizer keeps for managed parameters into chunks."""
        for parameter, state in optimizer.state.items():
            if parameter in self._managed:
                adopt_state_of(self._memory, parameter, state)

    def tensors(self) -> Iterator[torch.Tensor]:
        """The parameters that are in chunks, and their gradients and states that are."""
        for parameter in self._module_hooks.adopted():
            states = [optimizer.state.get(parameter) for optimizer in self.optimizers]
            yield from self._memory.addresses.managed_in([parameter, parameter.grad, states])

    def expected_parameters(self) -> list[Parameter]:
        """`parameters`; before the first step, what is adopted, with the states that Adam keeps."""
        return self.parameters or self._list(born=False)

    def _list(self, *, born: bool) -> list[Parameter]:
        """The adopted parameters, with the states that optimizers keep, or are guessed to until
        then."""
        listed = []
        for parameter in self._module_hooks.adopted():
            size_bytes = parameter.untyped_storage().nbytes()
            of_optimizers = [optimizer.state.get(parameter) for optimizer in self.optimizers]
            managed_in = self._memory.addresses.managed_in
            states = tuple(t.nbytes for state in of_optimizers for t in managed_in(state))
            one = Parameter(size_bytes, trained=parameter.requires_grad)
            listed.append(replace(one, states=states) if born else one)
        return listed
