"""Calls of functional optimizers that are computed when the optimizer's step ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from memtide._memory.tensor_parts import local_part
from memtide._optimizer_step.accesses import UsedBytes, accesses_of
from memtide._optimizer_step.partition import Update
from memtide._optimizer_step.torch_functional import Arguments, FunctionalSignature


@dataclass
class DeferredUpdate:
    """One call of a functional optimizer, to be computed in parts."""

    original: Callable[..., None]
    form: FunctionalSignature
    arguments: Arguments
    updates: list[Update]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that are stepped; of a sharded one, this process's shard."""
        return [local_part(p) for p in self.arguments["params"]]

    @property
    def written(self) -> list[torch.Tensor]:
        """The parameters, and their states."""
        states = (state for name in self.form.states for state in self.arguments[name])
        return [*self.parameters, *(local_part(state) for state in states if state is not None)]

    @property
    def pairs(self) -> list[tuple[torch.Tensor, Update]]:
        """Each parameter and its update."""
        return list(zip(self.parameters, self.updates, strict=True))

    def count_steps(self, change: int) -> None:
        """Adds `change`, 1 or -1, to the step count of each parameter's state, and sets its other
        single numbers to those after the step, or to those before it."""
        if self.form.steps is not None:
            torch._foreach_add_(self.arguments[self.form.steps], change)
        for index, update in enumerate(self.updates):
            options = update.options
            numbers = options.next_single_numbers if change > 0 else options.single_numbers
            for name, number in zip(self.form.single_numbers, numbers, strict=True):
                self.arguments[name][index].fill_(number.value)

    def redo(self) -> None:
        """Steps in this process after all, with torch's function."""
        lists = [self.arguments[name] for name in self.form.states if self.arguments[name]]
        copies = [list(values) for values in lists]
        for index, update in enumerate(self.updates):
            if update.options.fresh_states:
                for values in lists:
                    values[index] = None
        with torch.no_grad():
            self.original(**self.arguments)
            for values, copy in zip(lists, copies, strict=True):
                for value, state in zip(values, copy, strict=True):
                    if value is not state:
                        state.copy_(value)


class DeferredUpdates:
    """The calls of one step that are deferred, the oldest first."""

    def __init__(self) -> None:
        self.updates: list[DeferredUpdate] = []
        self.used = UsedBytes()  # By them.

    def add(self, update: DeferredUpdate) -> None:
        """Adds a call. REQUIRES: it does not meet `used`."""
        self.used.add(accesses_of(update.form, update.arguments))
        self.updates.append(update)

    def take(self) -> list[DeferredUpdate]:
        """All of them, which are deferred no more."""
        updates = self.updates
        self.updates, self.used = [], UsedBytes()
        return updates
