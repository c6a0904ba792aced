"""A batch as each of several ranks has it: the same work, at other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memtide._optimizer_step.partition import Batch, Geometry, Part
from memtide._optimizer_step.torch_functional import FORMS, torch_options_of
from memtide._optimizer_step.torch_options import TorchOptions
from torch.optim import adam

CHUNK = 4096
ELEMENTS = 64
# Where parameters, first and second moments and gradients begin.
_PARAMETERS, _FIRST, _SECOND, GRADIENTS = 2, 3, 4, 8


def adam_options(**changes: Any) -> TorchOptions:
    """The options of Adam's third step, with these arguments of torch's function."""
    form = next(form for form in FORMS if form.name == "adam")
    numbers = {"beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.0, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None}
    states = {"exp_avgs": [0], "exp_avg_sqs": [0], "max_exp_avg_sqs": []}
    arguments = {"params": [0], "grads": [0], "state_steps": [0], **states, **numbers, **flags}
    options = torch_options_of(form, adam._single_tensor_adam, {**arguments, **changes})
    assert options is not None
    return replace(options, step=3)


def batch_at(
    base: int,
    options: TorchOptions,
    gradients: Sequence[int] = (0, ELEMENTS * 4),
    gradient_place: int = GRADIENTS,
) -> tuple[Batch, Geometry]:
    """Two parameters side by side, with their moments. `gradients`: where in their chunk theirs
    begin."""
    geometry = Geometry(base, CHUNK)
    batch = Batch(reads={gradient_place}, writes={_PARAMETERS, _FIRST, _SECOND})
    for number, gradient in enumerate(gradients):
        start, size = number * ELEMENTS * 4, ELEMENTS * 4
        written = [geometry.chunk(place)[0] + start for place in (_PARAMETERS, _FIRST, _SECOND)]
        batch.parts.append(
            Part(
                options,
                ELEMENTS,
                geometry.chunk(gradient_place)[0] + gradient,
                tuple((address, address + size) for address in written),
            )
        )
    rest = geometry.chunk(_PARAMETERS)[0] + 2 * ELEMENTS * 4
    batch.copies.append((rest, rest + 128))
    return batch, geometry
