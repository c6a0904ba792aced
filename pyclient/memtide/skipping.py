"""What torch has stepped in this process, as it was before: for steps that fail or are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memtide.torch_updates import Arguments, Form


class NotFinite(Exception):
    """A step's gradients are infinite or NaN; the message says how many elements."""


class Undo:
    """Remembers tensors that are about to be stepped, and whether their gradients are finite."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._born: list[torch.Tensor] = []  # Parameters whose states do not exist yet.
        self.non_finite = 0

    def remember(
        self, form: Form, part: Arguments, wanted: Callable[[torch.Tensor], bool] = lambda _: True
    ) -> None:
        """Copies what one call of a torch function is about to change, as far as it is wanted."""
        names = ["params", *form.states, *([form.steps] if form.steps is not None else [])]
        with torch.no_grad():
            for values in (part[name] for name in names):
                for parameter, value in zip(part["params"], values, strict=False):
                    if not wanted(parameter if value is None else value):
                        continue
                    if value is None:
                        self._born.append(parameter)
                    else:
                        self._before.append((value, value.clone()))

    def count(self, form: Form, part: Arguments) -> None:
        """Counts the gradients that one call is about to use and that are infinite or NaN."""
        for gradient in part[form.gradients]:
            dense = gradient.coalesce().values() if gradient.is_sparse else gradient
            self.non_finite += int((~torch.isfinite(dense)).sum())

    def undo(self, states: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts everything back. `states`: the optimizer's."""
        with torch.no_grad():
            for value, before in reversed(self._before):
                value.copy_(before)
        for parameter in self._born:
            states.get(parameter, {}).pop("momentum_buffer", None)
