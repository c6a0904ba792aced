"""The daemon's optimizers compute what torch's compute, in 200 steps on the same gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_kernels import Kernels

STEPS = 200
# Not a multiple of any vector.
ELEMENTS = 4099
# Relative to the parameter, and to the distance that it could have moved: what
# daemon/optimizer/*.h promise.
TOLERANCE = 1e-6
STATES = {
    "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "SGD": ("momentum_buffer",),
    "Adagrad": ("sum",),
}
Options = dict[str, Any]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels()


def product(**values: list[Any]) -> list[Options]:
    """Every combination of the values of some options."""
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


ADAM = product(
    betas=[(0.9, 0.999), (0.3, 0.6)],
    eps=[1e-8],
    weight_decay=[0.0, 0.1],
    amsgrad=[False, True],
    maximize=[False, True],
)
SGD = [
    options
    for options in product(
        momentum=[0.0, 0.9],
        dampening=[0.0, 0.2],
        nesterov=[False, True],
        weight_decay=[0.0, 0.1],
        maximize=[False, True],
    )
    if not options["nesterov"] or (options["momentum"] and not options["dampening"])
]
ADAGRAD = product(
    lr_decay=[0.0, 0.01],
    initial_accumulator_value=[0.0, 0.5],
    weight_decay=[0.0, 0.1],
    eps=[1e-10],
    maximize=[False, True],
)
CASES = [
    *(("Adam", options) for options in ADAM),
    *(("AdamW", options) for options in ADAM),
    *(("SGD", options) for options in SGD),
    *(("Adagrad", options) for options in ADAGRAD),
]


def label(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ",".join(f"{name}={each}" for name, each in value.items() if each)


def rate(step: int) -> float:
    """The learning rate of a step: a warm-up, then a decay."""
    return 0.01 * min(1.0, step / 20) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))


def gradients(seed: int, dtype: torch.dtype = torch.float32) -> Callable[[int], torch.Tensor]:
    """Normal numbers of many magnitudes, which depend on the step only."""
    return functools.partial(gradient_at, seed, dtype)


@functools.cache  # All cases use the same gradients, and making them takes longer than a step.
def gradient_at(seed: int, dtype: torch.dtype, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    scale = 10 ** torch.empty(ELEMENTS).uniform_(-3, 1, generator=generator)
    return (torch.randn(ELEMENTS, generator=generator) * scale).to(dtype)


def first_parameter(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(7)).to(dtype)


def torch_runs(
    algorithm: str,
    options: Options,
    parameter: torch.Tensor,
    gradient_of: Callable[[int], torch.Tensor],
    **how: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The parameter and the states after all steps of torch's optimizer."""
    tensor = torch.nn.Parameter(parameter.clone())
    optimizer = getattr(torch.optim, algorithm)([tensor], lr=rate(1), **options, **how)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        tensor.grad = gradient_of(step).to(parameter.dtype)
        optimizer.step()
    return tensor.detach(), optimizer.state[tensor]


def state_names(algorithm: str, options: Options) -> tuple[str, ...]:
    names = STATES[algorithm]
    if algorithm == "SGD" and not options["momentum"]:
        return ()
    return names if algorithm not in ("Adam", "AdamW") or options["amsgrad"] else names[:2]


def kernel_runs(
    kernels: Kernels,
    algorithm: str,
    options: Options,
    parameter: torch.Tensor,
    gradient_of: Callable[[int], torch.Tensor],
    states: int,
    copy: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same after all steps of the kernels: the first out of place, the others in place."""
    tensor = torch.empty_like(parameter)
    moments = [torch.empty_like(parameter) for _ in range(states)]
    for step in range(1, STEPS + 1):
        old, old_states = (parameter, [None] * states) if step == 1 else (tensor, moments)
        kernels.run(
            algorithm,
            step,
            gradient_of(step),
            old,
            old_states,
            (tensor, moments),
            copy,
            lr=rate(step),
            **options,
        )
    return tensor, moments


def way(algorithm: str) -> float:
    """The distance that a parameter could have moved: all rates times the largest gradient or ratio
    of moments."""
    rates = sum(rate(step) for step in range(1, STEPS + 1))
    return rates * (40 if algorithm == "SGD" else 1)


@pytest.mark.parametrize(("algorithm", "options"), CASES, ids=label)
def test_fp32_is_as_torch(kernels: Kernels, algorithm: str, options: Options) -> None:
    gradient_of = gradients(1)
    expected, state = torch_runs(algorithm, options, first_parameter(), gradient_of, foreach=False)
    names = state_names(algorithm, options)
    actual, states = kernel_runs(
        kernels, algorithm, options, first_parameter(), gradient_of, len(names)
    )
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE * way(algorithm))
    for name, actual_state in zip(names, states, strict=True):
        scale = state[name].abs().max().item()
        torch.testing.assert_close(
            actual_state, state[name], rtol=TOLERANCE, atol=TOLERANCE * scale
        )


def test_lion_is_its_program_in_torch(kernels: Kernels) -> None:
    for weight_decay, maximize in itertools.product((0.0, 0.1), (False, True)):
        gradient_of = gradients(2)
        parameter, momentum = first_parameter(), torch.zeros(ELEMENTS)
        for step in range(1, STEPS + 1):
            gradient = -gradient_of(step) if maximize else gradient_of(step)
            parameter.mul_(1 - rate(step) * weight_decay)
            update = momentum.mul(0.9).add(gradient, alpha=1 - 0.9).sign_()
            parameter.add_(update, alpha=-rate(step))
            momentum.mul_(0.99).add_(gradient, alpha=1 - 0.99)
        options: Options = {
            "betas": (0.9, 0.99),
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        actual, (state,) = kernel_runs(kernels, "Lion", options, first_parameter(), gradient_of, 1)
        # If rounding changes the sign of an update, one step goes the other way.
        differs = ~torch.isclose(actual, parameter, rtol=TOLERANCE, atol=TOLERANCE * way("Lion"))
        assert differs.sum().item() <= 2
        torch.testing.assert_close(state, momentum, rtol=TOLERANCE, atol=TOLERANCE * 10)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("algorithm", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_master_with_narrow_gradients_is_as_torch_on_the_master(
    kernels: Kernels, algorithm: str, narrow: torch.dtype
) -> None:
    options: Options = {"weight_decay": 0.1}
    more: Options = {}
    if algorithm == "SGD":
        options["momentum"] = 0.9
    elif algorithm == "Adagrad":
        more["eps"] = 1e-10
    else:
        more = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}
    gradient_of = gradients(3, narrow)
    expected, _ = torch_runs(
        algorithm, options | more, first_parameter(), gradient_of, foreach=False
    )
    copy = torch.empty(ELEMENTS, dtype=narrow)
    states = 1 if algorithm in ("SGD", "Adagrad") else 2
    master, _ = kernel_runs(
        kernels, algorithm, options | more, first_parameter(), gradient_of, states, copy
    )
    torch.testing.assert_close(master, expected, rtol=TOLERANCE, atol=TOLERANCE * way(algorithm))
    assert torch.equal(copy, master.to(narrow))


@pytest.mark.parametrize("algorithm", ["Adam", "AdamW"])
def test_bf16_without_a_master_is_as_torchs_fused_kernel(kernels: Kernels, algorithm: str) -> None:
    """torch's fused AdamW, its only form that computes in fp32 and rounds parameter and moments
    once."""
    options: Options = {
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "amsgrad": False,
        "maximize": False,
    }
    gradient_of = gradients(4, torch.bfloat16)
    start = first_parameter(torch.bfloat16)
    expected, _ = torch_runs(algorithm, options, start, gradient_of, fused=True)
    actual, _ = kernel_runs(kernels, algorithm, options, start, gradient_of, 2)
    # fp32 results that differ in the last bit are rounded differently once in tens of thousands of
    # times.
    assert (actual != expected).float().mean().item() < 0.01
    torch.testing.assert_close(actual, expected, rtol=2**-6, atol=0.02)


def test_options_that_are_not_valid_are_refused_by_name(kernels: Kernels) -> None:
    parameter, gradient = torch.zeros(4), torch.zeros(4)
    with pytest.raises(ValueError, match=r"option lr is nan; must be 0 to 3\.4"):
        kernels.run("SGD", 1, gradient, parameter, [], lr=math.nan)
    with pytest.raises(ValueError, match=r"option betas\[1\] is 1; must be at least 0 and below 1"):
        kernels.run("Lion", 1, gradient, parameter, [torch.zeros(4)], lr=0.1, betas=(0.9, 1.0))
