"""Torch's functional optimizers, and memtide's own, read as what the daemon does.

`torch.optim.Adam.step` and its like gather parameters, gradients and states group by group, and
then call one function that does the arithmetic: `torch.optim.adam.adam` and its like. Everything
around that function (schedules, groups, closures, state dicts) stays torch's own.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._steps import Format, Rule, StepOptions
from memtide.adamw import AdamW
from memtide.adopt import Adopter, local_part
from memtide.errors import InvalidArgument
from memtide.layouts import is_dense, lie_alike
from memtide.lion import Lion
from memtide.step_pieces import Span, Update
from memtide.two_bytes import ROUNDING_SEED

FORMATS = {
    torch.float32: Format.FLOAT32,
    torch.bfloat16: Format.BFLOAT16,
    torch.float16: Format.FLOAT16,
}
_KEPT_DTYPES = (torch.float32, torch.bfloat16)  # Parameters and states.
_DECAY_RATES = ("beta1", "beta2")
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """The arguments of one of torch's functions."""

    module: str
    name: str
    gradients: str
    states: tuple[str, ...]
    steps: str | None
    scalars: tuple[str, ...]
    flags: tuple[str, ...]
    rule: Callable[[Arguments], Rule]
    # Of `states`, the first: fp32 parameters, of which those of two bytes are the rounded copies.
    has_masters: bool = False


def _adam_or_adamw(arguments: Arguments) -> Rule:
    decoupled = arguments.get("decoupled_weight_decay", False)
    return Rule.ADAMW if decoupled else Rule.ADAM


_ADAM = Form(
    "torch.optim.adam",
    "adam",
    "grads",
    ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "state_steps",
    ("lr", "weight_decay", "beta1", "beta2", "eps"),
    ("amsgrad", "maximize"),
    _adam_or_adamw,
)
FORMS = (
    _ADAM,
    replace(_ADAM, module="torch.optim.adamw", name="adamw", rule=lambda _: Rule.ADAMW),
    Form(
        "torch.optim.sgd",
        "sgd",
        "d_p_list",
        ("momentum_buffer_list",),
        None,
        ("lr", "weight_decay", "momentum", "dampening"),
        ("nesterov", "maximize"),
        lambda _: Rule.SGD,
    ),
    Form(
        "torch.optim.adagrad",
        "adagrad",
        "grads",
        ("state_sums",),
        "state_steps",
        ("lr", "weight_decay", "lr_decay", "eps"),
        ("maximize",),
        lambda _: Rule.ADAGRAD,
    ),
    replace(
        _ADAM,
        module="memtide.adamw",
        name="adamw",
        states=("masters", "exp_avgs", "exp_avg_sqs"),
        flags=("maximize",),
        rule=lambda _: Rule.ADAMW,
        has_masters=True,
    ),
    Form(
        "memtide.lion",
        "lion",
        "grads",
        ("masters", "exp_avgs"),
        "state_steps",
        ("lr", "weight_decay", "beta1", "beta2"),
        ("maximize",),
        lambda _: Rule.LION,
        has_masters=True,
    ),
)
# What options say of one parameter.
_OWN_OPTIONS = (
    *("step", "fresh_states", "parameter_format", "gradient_format", "state_format"),
    *("rounded_format", "rounding_seed"),
)
_OPTIMIZERS = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad),
    *(AdamW, Lion),
)


def functions() -> Iterator[tuple[Any, Form]]:
    """Module and form of each function that this torch has."""
    for form in FORMS:
        module = sys.modules.get(form.module)
        if module is not None and callable(getattr(module, form.name, None)):
            yield module, form


def steps_as_torch(optimizer: Optimizer) -> bool:
    """Whether an optimizer's step is torch's own: after the functions it calls, it does nothing
    more with parameters and states."""
    own = inspect.unwrap(type(optimizer).step)
    return any(own is inspect.unwrap(known.step) for known in _OPTIMIZERS)


def options_of(form: Form, arguments: Arguments) -> StepOptions | None:
    """The hyper-parameters of one call; None: it is not for the daemon.

    InvalidArgument: one of them is not finite.
    """
    if any(arguments.get(name) is not None for name in ("grad_scale", "found_inf")):
        return None
    if arguments.get("differentiable") or arguments.get("capturable"):
        return None
    values: dict[str, float] = {}
    for name in form.scalars:
        value = arguments[name]
        if isinstance(value, torch.Tensor):
            if value.numel() != 1 or value.requires_grad:
                return None
            value = value.item()
        values[name] = float(value)
        if not math.isfinite(values[name]):
            raise InvalidArgument(
                f"{name} of {form.name} is {values[name]}: the step is refused, and nothing has "
                "changed; hyper-parameters must be finite"
            )
    if any(value < 0 for value in values.values()):  # Torch computes with it, the daemon refuses.
        return None
    if any(values.get(name, 0.0) >= 1 for name in _DECAY_RATES):
        return None
    told: dict[str, Any] = {**values, **{name: bool(arguments[name]) for name in form.flags}}
    seed = ROUNDING_SEED if arguments.get("stochastic") else 0
    return StepOptions(form.rule(arguments), 1, rounding_seed=seed, **told)


@dataclass
class Split:
    """Which indices of a call's lists are the daemon's."""

    updates: list[Update] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


def split(form: Form, arguments: Arguments, options: StepOptions, adopter: Adopter) -> Split:
    """Sorts the parameters of a call. For the daemon's, a state that is None is made; what is in it
    means nothing."""
    found = Split()
    made: dict[tuple[object, ...], StepOptions] = {}
    lists = [arguments[name] for name in form.states if arguments[name]]
    gradients = arguments[form.gradients]
    masters = 1 if form.has_masters and arguments[form.states[0]] else 0
    for index, parameter in enumerate(arguments["params"]):
        if not adopter.manages(local_part(gradients[index])):
            adopter.adopt_gradient(parameter)
        sharded = parameter is not local_part(parameter)
        parameter, gradient = local_part(parameter), local_part(gradients[index])
        states = [local_part(values[index]) for values in lists]
        step = arguments[form.steps][index] if form.steps is not None else None
        fresh = any(state is None for state in states)
        if (fresh and sharded) or not _is_for_daemon(
            adopter, parameter, gradient, states, step, masters
        ):
            found.rest.append(index)
            continue
        if fresh:
            states = [adopter.new_state(gradient, row) for row, _ in enumerate(lists)]
            for values, state in zip(lists, states, strict=True):
                values[index] = state
        stepped = states[0] if masters else parameter
        by_chance = stepped.dtype is torch.bfloat16
        own = (
            int(step.item()) + 1 if step is not None else 1,
            fresh,
            FORMATS[stepped.dtype],
            FORMATS[gradient.dtype],
            FORMATS[states[-1].dtype] if states else Format.FLOAT32,
            FORMATS[parameter.dtype] if masters else Format.NONE,
            options.rounding_seed if by_chance else 0,
        )
        if own not in made:
            made[own] = replace(options, **dict(zip(_OWN_OPTIONS, own, strict=True)))
        written = (_span(parameter), *map(_span, states))
        first = arguments["first_elements"][index] if "first_elements" in arguments else 0
        found.updates.append(Update(made[own], parameter.numel(), _span(gradient), written, first))
        found.indices.append(index)
    return found


def part_of(arguments: Arguments, count: int, indices: list[int]) -> Arguments:
    """The arguments of a call with some of its `count` parameters."""
    return {
        name: [value[index] for index in indices] if _is_list_of(value, count) else value
        for name, value in arguments.items()
    }


def put_back(arguments: Arguments, part: Arguments, count: int, indices: list[int]) -> None:
    """What a call with a part of the lists has put into them, put into the whole lists."""
    for name, value in arguments.items():
        if _is_list_of(value, count):
            for index, item in zip(indices, part[name], strict=True):
                value[index] = item


def _is_list_of(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count


def _is_for_daemon(
    adopter: Adopter,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    states: list[torch.Tensor | None],
    step: Any,
    masters: int,
) -> bool:
    kept = [state if state is not None else gradient for state in states]
    tensors = [gradient, parameter, *kept]
    stepped, moments = [parameter, *kept][masters], kept[masters:]
    if step is not None and not (isinstance(step, torch.Tensor) and step.numel() == 1):
        return False
    return (
        all(adopter.manages(tensor) and tensor.dtype in FORMATS for tensor in tensors)
        and all(tensor.dtype in _KEPT_DTYPES for tensor in (stepped, *moments))
        and not (masters and (stepped.dtype, parameter.itemsize) != (torch.float32, 2))
        and len({tensor.dtype for tensor in moments}) <= 1
        and is_dense(parameter)
        and lie_alike(parameter, (gradient, *kept))
    )


def _span(tensor: torch.Tensor) -> Span:
    return Span(tensor.data_ptr(), tensor.itemsize)
