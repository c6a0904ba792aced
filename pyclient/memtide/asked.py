"""What torch's functional optimizers were asked to do and the daemon is to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from memtide.adopt import local_part
from memtide.step_pieces import Update
from memtide.torch_updates import Arguments, Form


@dataclass
class Asked:
    """One call of a torch function, left to the daemon."""

    original: Callable[..., None]
    form: Form
    arguments: Arguments
    updates: list[Update]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Those that are stepped: of sharded ones this process's part."""
        return [local_part(p) for p in self.arguments["params"]]

    @property
    def pairs(self) -> list[tuple[torch.Tensor, Update]]:
        """Each parameter and what is to be made of it."""
        return list(zip(self.parameters, self.updates, strict=True))

    def count_steps(self, change: int) -> None:
        """Changes the steps that the states have made."""
        if self.form.steps is not None:
            torch._foreach_add_(self.arguments[self.form.steps], change)

    def redo(self) -> None:
        """Makes the step here after all."""
        lists = [self.arguments[name] for name in self.form.states if self.arguments[name]]
        made = [list(values) for values in lists]
        for index, update in enumerate(self.updates):
            if update.options.fresh_states:
                for values in lists:
                    values[index] = None
        with torch.no_grad():
            self.original(**self.arguments)
            for values, kept in zip(lists, made, strict=True):
                for value, state in zip(values, kept, strict=True):
                    if value is not state:
                        state.copy_(value)
