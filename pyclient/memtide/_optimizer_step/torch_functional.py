"""Translates calls of torch's functional optimizers, and of memtide's own, to options of parts.

A step method such as `torch.optim.Adam.step` collects parameters, gradients and states group by
group, and then calls one function that does the arithmetic, here `torch.optim.adam.adam`. Only that
call is replaced; schedules, groups, closures and state dicts stay torch's own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._capi.optimizer_step import Format, Rule, StepOptions
from memtide._optimizer_step import float_modes
from memtide._optimizer_step.torch_options import (
    TensorNumber,
    TorchCall,
    TorchOptions,
    number_of,
)
from memtide.errors import InvalidArgument
from memtide.optim._adamw import AdamW
from memtide.optim._lion import Lion
from memtide.optim._low_precision import ROUNDING_SEED

FORMATS = {
    torch.float32: Format.FLOAT32,
    torch.bfloat16: Format.BFLOAT16,
    torch.float16: Format.FLOAT16,
}
_DECAY_RATES = ("beta1", "beta2")
Arguments = dict[str, Any]


@dataclass(frozen=True)
class FunctionalSignature:
    """The names of the arguments of one functional optimizer, and its update rule."""

    module: str
    name: str
    gradients: str
    states: tuple[str, ...]
    steps: str | None
    scalars: tuple[str, ...]
    flags: tuple[str, ...]
    rule: Callable[[Arguments], Rule] | None  # None: only torch computes it.
    # True: the first of `states` is fp32 masters, of which parameters of two bytes are copies.
    has_masters: bool = False
    # States of a parameter that are one number, in a tensor that the function changes in place.
    single_numbers: tuple[str, ...] = ()


def _adam_or_adamw(arguments: Arguments) -> Rule:
    decoupled = arguments.get("decoupled_weight_decay", False)
    return Rule.ADAMW if decoupled else Rule.ADAM


_ADAM_SCALARS = ("lr", "weight_decay", "beta1", "beta2", "eps")
_ADAM = FunctionalSignature(
    "torch.optim.adam",
    "adam",
    "grads",
    ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "state_steps",
    _ADAM_SCALARS,
    ("amsgrad", "maximize"),
    _adam_or_adamw,
)


def _by_torch_only(
    name: str, states: tuple[str, ...], scalars: tuple[str, ...]
) -> FunctionalSignature:
    """An optimizer for which the daemon has no kernel."""
    module = f"torch.optim.{name}"
    return FunctionalSignature(module, name, "grads", states, "state_steps", scalars, (), None)


_STEP_SIZES = ("step_size_min", "step_size_max", "etaminus", "etaplus")
_BY_TORCH_ONLY = (
    _by_torch_only(
        "rmsprop",
        ("square_avgs", "grad_avgs", "momentum_buffer_list"),
        ("lr", "weight_decay", "alpha", "eps", "momentum"),
    ),
    _by_torch_only("adamax", ("exp_avgs", "exp_infs"), _ADAM_SCALARS),
    _by_torch_only("adadelta", ("square_avgs", "acc_deltas"), ("lr", "weight_decay", "rho", "eps")),
    _by_torch_only("radam", ("exp_avgs", "exp_avg_sqs"), _ADAM_SCALARS),
    _by_torch_only("rprop", ("prevs", "step_sizes"), _STEP_SIZES),
    replace(
        _by_torch_only("nadam", ("exp_avgs", "exp_avg_sqs"), (*_ADAM_SCALARS, "momentum_decay")),
        single_numbers=("mu_products",),
    ),
    replace(
        _by_torch_only("asgd", ("axs",), ("lr", "weight_decay", "lambd", "t0", "alpha")),
        single_numbers=("mus", "etas"),
    ),
)
FORMS = (
    _ADAM,
    replace(_ADAM, module="torch.optim.adamw", name="adamw", rule=lambda _: Rule.ADAMW),
    FunctionalSignature(
        "torch.optim.sgd",
        "sgd",
        "d_p_list",
        ("momentum_buffer_list",),
        None,
        ("lr", "weight_decay", "momentum", "dampening"),
        ("nesterov", "maximize"),
        lambda _: Rule.SGD,
    ),
    FunctionalSignature(
        "torch.optim.adagrad",
        "adagrad",
        "grads",
        ("state_sums",),
        "state_steps",
        ("lr", "weight_decay", "lr_decay", "eps"),
        ("maximize",),
        lambda _: Rule.ADAGRAD,
    ),
    *_BY_TORCH_ONLY,
    replace(
        _ADAM,
        module="memtide.optim._adamw",
        name="adamw",
        states=("masters", "exp_avgs", "exp_avg_sqs"),
        flags=("maximize",),
        rule=lambda _: Rule.ADAMW,
        has_masters=True,
    ),
    FunctionalSignature(
        "memtide.optim._lion",
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
_OPTIMIZERS = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad),
    *(AdamW, Lion),
)
_OPTIMIZERS_BY_TORCH_ONLY = (
    *(torch.optim.RMSprop, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.NAdam, torch.optim.ASGD),
)


def steps_as_torch(optimizer: Optimizer, *, by_torch: bool) -> bool:
    """Whether an optimizer's step method is torch's own or memtide's. These call one functional
    optimizer for each group and do nothing more with parameters and states. `by_torch`: torch's
    functions compute the steps, so that those without a kernel of the daemon count, too."""
    step_function = inspect.unwrap(type(optimizer).step)
    known = (*_OPTIMIZERS, *_OPTIMIZERS_BY_TORCH_ONLY) if by_torch else _OPTIMIZERS
    return any(step_function is inspect.unwrap(each.step) for each in known)


def torch_options_of(
    form: FunctionalSignature, original: Callable[..., None], arguments: Arguments
) -> TorchOptions | None:
    """The options of one call that torch's own function `original` is to compute in parts; None: it
    cannot, or not to the same bits."""
    numbers = []
    for name in form.scalars:
        number = number_of(arguments[name])
        if number is None:
            return None
        numbers.append((name, number))
    if _needs_gradients_of_step(arguments):
        return None
    modes = float_modes.present()
    if modes != float_modes.DEFAULT and torch.get_num_threads() > 1:
        return None  # Torch's other threads have the modes of the moment when they began.
    lists = {"params", form.gradients, form.steps, "first_elements"}
    known = {*lists, *form.states, *form.single_numbers, *form.scalars}
    flags = {name: value for name, value in arguments.items() if name not in known}
    present = tuple(name for name in form.states if arguments[name])
    call = TorchCall(
        original,
        form.gradients,
        present,
        tuple(name for name in form.states if name not in present),
        form.single_numbers,
        form.steps,
        "first_elements" in arguments,
        tuple(sorted(flags.items())),
        # A fused kernel divides a tensor at whole vectors.
        1 if arguments.get("fused") else torch.get_num_threads(),
        modes,
    )
    return TorchOptions(None, 1, 0.0, call=call, numbers=tuple(numbers))


def next_single_numbers(
    form: FunctionalSignature, original: Callable[..., None], arguments: Arguments
) -> list[tuple[TensorNumber, ...]]:
    """For each parameter of a call, its single numbers after the step."""
    count = len(arguments["params"])
    if not form.single_numbers:
        return [()] * count
    one_element = {
        name: [torch.zeros(1) for _ in arguments[name]]
        for name in ("params", form.gradients, *form.states)
    }
    numbers = [*form.single_numbers, *([form.steps] if form.steps is not None else [])]
    copies = {name: [tensor.clone() for tensor in arguments[name]] for name in numbers}
    original(**{**arguments, **one_element, **copies})
    return [single_numbers_of(form, copies, index) for index in range(count)]


def single_numbers_of(
    form: FunctionalSignature, arguments: Arguments, index: int
) -> tuple[TensorNumber, ...]:
    """The single numbers of one parameter of a call, as they are now."""
    tensors = (arguments[name][index] for name in form.single_numbers)
    return tuple(TensorNumber(tensor.item(), tensor.dtype) for tensor in tensors)


def _needs_gradients_of_step(arguments: Arguments) -> bool:
    """Whether a call has what only torch's own step can use."""
    return any(arguments.get(name) is not None for name in ("grad_scale", "found_inf")) or any(
        arguments.get(name) for name in ("differentiable", "capturable")
    )


def options_of(form: FunctionalSignature, arguments: Arguments) -> StepOptions | None:
    """The options of one call; None: the daemon cannot compute it.

    InvalidArgument: a hyper-parameter is not finite.
    """
    if form.rule is None or _needs_gradients_of_step(arguments):
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
    if any(value < 0 for value in values.values()):  # torch allows it, the daemon refuses it.
        return None
    if any(values.get(name, 0.0) >= 1 for name in _DECAY_RATES):
        return None
    rule_options: dict[str, Any] = {
        **values,
        **{name: bool(arguments[name]) for name in form.flags},
    }
    seed = ROUNDING_SEED if arguments.get("stochastic") else 0
    return StepOptions(form.rule(arguments), 1, rounding_seed=seed, **rule_options)
