"""Training loops for tests of speculative steps.

Each gives the same values with plain torch and with the fake client, which has torch's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memtide
import torch
from torch import nn

STEPS = 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [24, 60, 300, 24, 60, 24, 24]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)))


def adam(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)


def backward(model: nn.Module, scale: float = 1.0) -> torch.Tensor:
    inputs = torch.randn(5, 24).to(next(model.parameters()).dtype)
    loss = scale * model(inputs).pow(2).sum()
    loss.backward()
    return loss.detach()


def values(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [v for o in optimizers for state in o.state.values() for v in state.values()]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *states]]


Between = Callable[[nn.Sequential, torch.optim.Optimizer, int], None]


def loop(between: Between) -> list[torch.Tensor]:
    """The plain loop, with something between backward and step."""
    model = network()
    optimizer = adam(model)
    torch.manual_seed(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model)
        between(model, optimizer, step)
        optimizer.step()
    return values(model, optimizer)


def plain() -> list[torch.Tensor]:
    return loop(lambda *_: None)


def clipped() -> list[torch.Tensor]:
    return loop(lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def new_rate() -> list[torch.Tensor]:
    def change(_: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)

    return loop(change)


def gradient_changed_past_autograd() -> list[torch.Tensor]:
    def change(model: nn.Sequential, _: torch.optim.Optimizer, step: int) -> None:
        if step > 2:
            model[1].weight.grad.data[0].mul_(0.5)

    return loop(change)


def parameter_changed() -> list[torch.Tensor]:
    def change(model: nn.Sequential, _: torch.optim.Optimizer, step: int) -> None:
        if step % 2:
            with torch.no_grad():
                model[2].weight.mul_(0.9)
        else:
            model[3].weight.data.add_(0.01)

    return loop(change)


def states_loaded() -> list[torch.Tensor]:
    def change(_: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 5:
            optimizer.load_state_dict(optimizer.state_dict())

    return loop(change)


def gradient_replaced() -> list[torch.Tensor]:
    def change(model: nn.Sequential, _: torch.optim.Optimizer, step: int) -> None:
        if step > 3:
            model[1].weight.grad = None
            model[1].weight.grad = torch.full_like(model[1].weight, 0.1)

    return loop(change)


def second_backward() -> list[torch.Tensor]:
    def more(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 4:
            backward(model)
        if step == 6:
            optimizer.zero_grad()
            backward(model)

    return loop(more)


def scheduled(
    made: Callable[[nn.Module], torch.optim.Optimizer] = adam,
) -> list[torch.Tensor]:
    model = network()
    optimizer = made(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    torch.manual_seed(2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        schedule.step()
    return values(model, optimizer)


def accumulated(*, set_to_none: bool = True) -> list[torch.Tensor]:
    model = network()
    optimizer = adam(model)
    torch.manual_seed(3)
    for step in range(STEPS):
        for _ in range(3 if step != 6 else 2):
            backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return values(model, optimizer)


def accumulated_onto_zeros() -> list[torch.Tensor]:
    return accumulated(set_to_none=False)


def scaled(
    between: Callable[[nn.Module], object] = lambda _: None, scale: float = 2.0**126
) -> list[torch.Tensor]:
    model = network()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    torch.manual_seed(4)
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 24)).pow(2).sum()).backward()
        scaler.unscale_(optimizer)
        between(model)
        scaler.step(optimizer)
        scaler.update()
    return [*values(model, optimizer), torch.tensor(scaler.get_scale())]


def scaled_by_no_power_of_two() -> list[torch.Tensor]:
    return scaled(scale=1000.1)


def scaled_and_clipped() -> list[torch.Tensor]:
    return scaled(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0), 2.0**10)


def scaled_down_to_nothing() -> list[torch.Tensor]:
    model = network()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1000)
    torch.manual_seed(4)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 24)).pow(2).sum()).backward()
        if scaler.get_scale() == 0:
            scaler.update(1.0)
            continue
        scaler.step(optimizer)
        scaler.update(0.0 if step == STEPS else None)
    return values(model, optimizer)


def scaled_and_written_to() -> list[torch.Tensor]:
    def double(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad.mul_(2)

    return scaled(double, 2.0**10)


def tied_and_frozen() -> list[torch.Tensor]:
    model = network()
    model[5].weight = model[5].weight
    tied = nn.Linear(24, 24)
    tied.weight = model[5].weight
    model.append(tied)
    model[1].weight.requires_grad_(False)
    optimizer = adam(model)
    torch.manual_seed(5)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        model[1].weight.requires_grad_(step > 4)
    return values(model, optimizer)


def two_optimizers() -> list[torch.Tensor]:
    """One loss with two optimizers, which first step together and then at different times."""
    model = network()
    first, second = adam(model[:3]), torch.optim.SGD(model[3:].parameters(), 0.01, momentum=0.9)
    torch.manual_seed(6)
    for step in range(2 * STEPS):
        first.zero_grad()
        second.zero_grad()
        backward(model)
        if step < STEPS or step % 2:
            first.step()
        if step >= STEPS:
            backward(model)
        second.step()
    return values(model, first, second)


def by_lion() -> list[torch.Tensor]:
    return scheduled(lambda model: memtide.Lion(model.parameters(), lr=0.01, weight_decay=0.1))


def with_masters() -> list[torch.Tensor]:
    return scheduled(lambda model: memtide.AdamW(model.bfloat16().parameters(), lr=0.01))


def stochastic() -> list[torch.Tensor]:
    return scheduled(
        lambda model: memtide.Lion(model.bfloat16().parameters(), lr=0.01, weights="stochastic")
    )


class Refused(Exception):
    pass


class Refusing(torch.autograd.Function):
    """Passes gradients on, or raises in backward."""

    refuses = False

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if Refusing.refuses:
            raise Refused
        return gradient


def backward_that_raises() -> list[torch.Tensor]:
    model = network()
    optimizer = adam(model)
    torch.manual_seed(7)
    for step in range(STEPS):
        optimizer.zero_grad()
        Refusing.refuses = step in (3, 5)
        x = Refusing.apply(model[:3](torch.randn(5, 24)))
        loss = model[3:](x).pow(2).sum()
        try:
            loss.backward()
        except Refused:
            if step == 3:
                optimizer.step()  # With the gradients that there are.
            continue
        optimizer.step()
    Refusing.refuses = False
    return values(model, optimizer)


def step_left_out() -> list[torch.Tensor]:
    model = network()
    optimizer = adam(model)
    torch.manual_seed(8)
    for step in range(STEPS):
        backward(model)
        if step != 4:
            optimizer.step()
        optimizer.zero_grad()
    return values(model, optimizer)


def changed_in_a_hook() -> list[torch.Tensor]:
    """The script's own hook changes a gradient after memtide's hook, past torch's counters."""
    model = network()
    optimizer = adam(model)

    def clamp(parameter: torch.Tensor) -> None:
        parameter.grad.data.clamp_(-0.01, 0.01)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clamp)
    torch.manual_seed(9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    return values(model, optimizer)


EARLY = [plain, scheduled, accumulated, accumulated_onto_zeros, tied_and_frozen, two_optimizers]
EARLY += [
    scaled,
    scaled_by_no_power_of_two,
    scaled_down_to_nothing,
    by_lion,
    with_masters,
    stochastic,
    states_loaded,
    second_backward,
    step_left_out,
    backward_that_raises,
]
AGAIN = [clipped, new_rate, parameter_changed, gradient_changed_past_autograd, gradient_replaced]
AGAIN += [scaled_and_clipped, scaled_and_written_to, changed_in_a_hook]


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model after three steps, without gradients: the next step may be speculative."""
    model = network()
    optimizer = adam(model)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    optimizer.zero_grad()
    return model, optimizer
