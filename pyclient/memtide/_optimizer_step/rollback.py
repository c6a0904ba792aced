"""Undoes what torch has stepped in this process, when the step fails or is skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memtide._optimizer_step.torch_functional import Arguments, FunctionalSignature
from memtide._util.script_modes import without_modes_of_script


class NotFinite(Exception):
    """Elements of a step's gradients are infinite or NaN: `elements` of them."""

    def __init__(self, elements: int) -> None:
        super().__init__(f"{elements} elements of its gradients are infinite or NaN")


class Undo:
    """Copies of tensors that are about to be stepped, and the count of non-finite gradients."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._born: list[torch.Tensor] = []  # Parameters whose states do not exist yet.
        self.non_finite = 0

    def remember(
        self,
        form: FunctionalSignature,
        part: Arguments,
        wanted: Callable[[torch.Tensor], bool] = lambda _: True,
    ) -> None:
        """Copies the tensors that one call of a torch function is about to change, of those for
        which `wanted` is true."""
        steps = [form.steps] if form.steps is not None else []
        names = ["params", *form.states, *form.single_numbers, *steps]
        with torch.no_grad(), without_modes_of_script():
            for values in (part[name] for name in names):
                for parameter, value in zip(part["params"], values, strict=False):
                    if not wanted(parameter if value is None else value):
                        continue
                    if value is None:
                        self._born.append(parameter)
                    else:
                        self._before.append((value, value.clone()))

    def count(self, form: FunctionalSignature, part: Arguments) -> None:
        """Counts the infinite and NaN elements of the gradients that one call is about to use."""
        with without_modes_of_script():
            for gradient in part[form.gradients]:
                dense = gradient.coalesce().values() if gradient.is_sparse else gradient
                self.non_finite += int((~torch.isfinite(dense)).sum())

    def undo(self, states: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Restores the copied tensors, and removes states that the call has created from `states`,
        the optimizer's."""
        with torch.no_grad(), without_modes_of_script():
            for value, before in reversed(self._before):
                value.copy_(before)
        for parameter in self._born:
            states.get(parameter, {}).pop("momentum_buffer", None)
