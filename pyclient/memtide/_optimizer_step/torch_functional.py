"""Translates calls of torch's functional optimizers, and of memtide's own, to options of parts.

A step method such as `torch.optim.Adam.step` collects parameters, gradients and states group by
group, and then calls one function that does the arithmetic, here `torch.optim.adam.adam`. Only that
call is replaced; schedules, groups, closures and state dicts stay torch's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._optimizer_step import float_modes
from memtide._optimizer_step.torch_options import (
    TensorNumber,
    TorchCall,
    TorchOptions,
    argument_of,
    number_of,
)
from memtide._util.script_modes import in_mode_of_script
from memtide.optim._adamw import AdamW
from memtide.optim._lion import Lion

Arguments = dict[str, Any]


@dataclass(frozen=True)
class FunctionalSignature:
    """The names of the arguments of one functional optimizer."""

    module: str
    name: str
    gradients: str
    states: tuple[str, ...]
    steps: str | None
    scalars: tuple[str, ...]
    # True: the first of `states` is fp32 masters, of which parameters of two bytes are copies.
    has_masters: bool = False
    # States of a parameter that are one number, in a tensor that the function changes in place.
    single_numbers: tuple[str, ...] = ()


_ADAM_SCALARS = ("lr", "weight_decay", "beta1", "beta2", "eps")
_ADAM = FunctionalSignature(
    "torch.optim.adam",
    "adam",
    "grads",
    ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "state_steps",
    _ADAM_SCALARS,
)


def _torch_s(name: str, states: tuple[str, ...], scalars: tuple[str, ...]) -> FunctionalSignature:
    module = f"torch.optim.{name}"
    return FunctionalSignature(module, name, "grads", states, "state_steps", scalars)


_STEP_SIZES = ("step_size_min", "step_size_max", "etaminus", "etaplus")
FORMS = (
    _ADAM,
    replace(_ADAM, module="torch.optim.adamw", name="adamw"),
    FunctionalSignature(
        "torch.optim.sgd",
        "sgd",
        "d_p_list",
        ("momentum_buffer_list",),
        None,
        ("lr", "weight_decay", "momentum", "dampening"),
    ),
    _torch_s("adagrad", ("state_sums",), ("lr", "weight_decay", "lr_decay", "eps")),
    _torch_s(
        "rmsprop",
        ("square_avgs", "grad_avgs", "momentum_buffer_list"),
        ("lr", "weight_decay", "alpha", "eps", "momentum"),
    ),
    _torch_s("adamax", ("exp_avgs", "exp_infs"), _ADAM_SCALARS),
    _torch_s("adadelta", ("square_avgs", "acc_deltas"), ("lr", "weight_decay", "rho", "eps")),
    _torch_s("radam", ("exp_avgs", "exp_avg_sqs"), _ADAM_SCALARS),
    _torch_s("rprop", ("prevs", "step_sizes"), _STEP_SIZES),
    replace(
        _torch_s("nadam", ("exp_avgs", "exp_avg_sqs"), (*_ADAM_SCALARS, "momentum_decay")),
        single_numbers=("mu_products",),
    ),
    replace(
        _torch_s("asgd", ("axs",), ("lr", "weight_decay", "lambd", "t0", "alpha")),
        single_numbers=("mus", "etas"),
    ),
    replace(
        _ADAM,
        module="memtide.optim._adamw",
        name="adamw",
        states=("masters", "exp_avgs", "exp_avg_sqs"),
        has_masters=True,
    ),
    FunctionalSignature(
        "memtide.optim._lion",
        "lion",
        "grads",
        ("masters", "exp_avgs"),
        "state_steps",
        ("lr", "weight_decay", "beta1", "beta2"),
        has_masters=True,
    ),
)
_OPTIMIZERS = (
    *(AdamW, Lion),
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad),
    *(torch.optim.RMSprop, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.NAdam, torch.optim.ASGD),
)


def steps_as_torch(optimizer: Optimizer) -> bool:
    """Whether an optimizer's step method is torch's own or memtide's. These call one functional
    optimizer for each group and do nothing more with parameters and states."""
    step_function = inspect.unwrap(type(optimizer).step)
    return any(step_function is inspect.unwrap(each.step) for each in _OPTIMIZERS)


def torch_options_of(
    form: FunctionalSignature,
    original: Callable[..., None],
    arguments: Arguments,
    *,
    has_plain_bits: bool = True,
) -> TorchOptions | None:
    """The options of one call that torch's own function `original` is to compute in parts; None: it
    cannot, or not to the bits of a plain step, if parts have these."""
    numbers = []
    for name in form.scalars:
        number = number_of(arguments[name], has_plain_bits=has_plain_bits)
        if number is None:
            return None
        numbers.append((name, number))
    # The threads that make parts have no mode that the script has entered.
    if _needs_gradients_of_step(arguments) or in_mode_of_script():
        return None
    modes = float_modes.present()
    if has_plain_bits and modes != float_modes.DEFAULT and torch.get_num_threads() > 1:
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
    return TorchOptions(call, tuple(numbers))


def next_single_numbers(
    form: FunctionalSignature, options: TorchOptions, arguments: Arguments
) -> list[tuple[TensorNumber, ...]]:
    """For each parameter of a call, its single numbers after the step by `options`."""
    count = len(arguments["params"])
    if not form.single_numbers:
        return [()] * count
    # On the CPU, as the tensors of parts: neither a default device nor the number's own is used.
    one_element = {
        name: [torch.zeros(1, device="cpu") for _ in arguments[name]]
        for name in ("params", form.gradients, *form.states)
    }
    numbers = [*form.single_numbers, *([form.steps] if form.steps is not None else [])]
    copies = {name: [tensor.to("cpu", copy=True) for tensor in arguments[name]] for name in numbers}
    scalars = {name: argument_of(number) for name, number in options.numbers}
    options.call.function(**{**arguments, **one_element, **copies, **scalars})
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
