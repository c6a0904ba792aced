"""Which gradients a step is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._optimizer_step.partition import Batch
from memtide._optimizer_step.speculative_step import ComputedBatches, SpeculativeSteps
from memtide._torch_hooks.around_step import multiply_by_one
from memtide._torch_hooks.module_hooks import ModuleHooks
from museum import (
    STEPS,
    WIDTH,
    Case,
    Results,
    adamw,
    batch,
    believing_parts,
    iterations_ending_activations,
    moving_shared_tensors,
    network,
    train,
    values,
)
from torch import nn
from torch.optim import Optimizer


def backwards_before_a_step() -> Results:
    """Gradients of two or three micro-batches are accumulated before each step."""
    model = network()
    optimizer = adamw(model)
    losses = []
    for step in range(STEPS):
        for _ in range(3 if step == 5 else 2):
            loss = model(batch()).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *values(model, optimizer)]


def clipped_by_the_norm_of_all() -> Results:
    """The norm counts tied weights once, and small tensors outside of chunks as well."""
    model = network()
    model[6].weight = model[0].weight
    optimizer = adamw(model)
    results = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (10.0 ** (step % 3)) * model(batch()).square().mean()
        loss.backward()
        results.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2))
        optimizer.step()
        results.append(loss.detach())
    return [*results, *values(model, optimizer)]


def never_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(multiply_by_one, "_is_one", lambda *_: True)


def gradients_of_none_and_of_zero() -> Results:
    """A layer without a gradient is left alone; with one of zeros, it decays and its moments do."""
    model = network()
    optimizer = adamw(model)
    losses = []
    for step in range(2 * STEPS):
        optimizer.zero_grad(set_to_none=step < STEPS)
        first = 2 * (step % 3 == 1)
        loss = model[first:](batch()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def zeros_for_none(patch: pytest.MonkeyPatch) -> None:
    begin = OffloadedSteps.begin

    def with_all_gradients(
        steps: OffloadedSteps, optimizer: Optimizer, release: Callable[[], None]
    ) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        begin(steps, optimizer, release)

    patch.setattr(OffloadedSteps, "begin", with_all_gradients)


def experts_by_data() -> Results:
    """The data say which expert runs behind the common layers. First, it is always the same one."""
    model = network(depth=2)
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    optimizer = adamw(nn.ModuleList([model, experts]))

    def loss_of(step: int) -> torch.Tensor:
        value = batch()
        expert = 0 if step < STEPS else int(value.sum().abs()) % 3
        return experts[expert](model(value)).square().mean()

    return [*train(optimizer, loss_of, 2 * STEPS), *values(model, optimizer), *values(experts)]


def predictions_believed(patch: pytest.MonkeyPatch) -> None:
    remaining = SpeculativeSteps.remaining

    def none_if_predicted(
        steps: SpeculativeSteps,
        speculative: ComputedBatches | None,
        batches: Sequence[Batch],
        shadows: Mapping[int, int],
    ) -> Sequence[Batch]:
        left = remaining(steps, speculative, batches, shadows)
        return left if speculative is None else []

    patch.setattr(SpeculativeSteps, "remaining", none_if_predicted)


def hooks_of_the_script_on_gradients() -> Results:
    """One scales a gradient on its way, another one clamps what was accumulated, past all
    counters."""
    model = network()
    optimizer = adamw(model)

    def clamp(parameter: torch.Tensor) -> None:
        parameter.grad.data.clamp_(-1e-4, 1e-4)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clamp)

    def loss_of(_step: int) -> torch.Tensor:
        value = model[:4](batch())
        value.register_hook(lambda gradient: gradient * 2)
        return model[4:](value).square().mean()

    return [*train(optimizer, loss_of), *values(model, optimizer)]


def gradients_before_the_hook(patch: pytest.MonkeyPatch) -> None:
    """Steps are made of gradients as memtide's own hook has seen them."""
    after_gradient, begin = ModuleHooks._after_gradient, OffloadedSteps.begin
    seen: dict[torch.Tensor, torch.Tensor] = {}

    def see(hooks: ModuleHooks, parameter: torch.Tensor) -> None:
        after_gradient(hooks, parameter)
        seen[parameter] = parameter.grad.clone()

    def step_what_was_seen(
        steps: OffloadedSteps, optimizer: Optimizer, release: Callable[[], None]
    ) -> None:
        for parameter, gradient in seen.items():
            parameter.grad.copy_(gradient)
        begin(steps, optimizer, release)

    patch.setattr(ModuleHooks, "_after_gradient", see)
    patch.setattr(OffloadedSteps, "begin", step_what_was_seen)


def gradients_in_one_buffer() -> Results:
    """Gradients of two layers are views of a buffer, of which the script takes the norm, and which
    it clips."""
    model = network()
    optimizer = adamw(model)
    parameters = list(model[:4].parameters())
    buffer = torch.zeros(sum(parameter.numel() for parameter in parameters))
    views = buffer.split([parameter.numel() for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view.view_as(parameter)
    results = []
    for _ in range(STEPS):
        buffer.zero_()
        model[4:].zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        norm = buffer.norm()
        buffer.mul_(0.01 / norm)
        optimizer.step()
        results += [norm, loss.detach()]
    return [*results, *values(model, optimizer)]


def steps_left_out_for_nan() -> Results:
    """The script scales its loss, and leaves out the step where a gradient is not finite."""
    model = network()
    optimizer = adamw(model)
    scale, scales, losses = 2.0**10, [], []
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        value = batch()
        if step % 5 == 4:
            value[0, 0] = torch.nan
        loss = model(value).square().mean()
        (loss * scale).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        if all(gradient.isfinite().all() for gradient in gradients):
            for gradient in gradients:
                gradient.mul_(1 / scale)
            optimizer.step()
            losses.append(loss.detach())
        else:
            scale /= 2
        scales.append(torch.tensor(scale))
    return [*losses, *scales, *values(model, optimizer)]


def steps_during_backward() -> Results:
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    model = network()
    optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}

    def step_now(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    losses = []
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return [*losses, *values(model, *optimizers.values())]


CASES = [
    Case(backwards_before_a_step, believing_parts),
    Case(clipped_by_the_norm_of_all, never_clipped),
    Case(gradients_of_none_and_of_zero, zeros_for_none),
    Case(experts_by_data, predictions_believed),
    Case(hooks_of_the_script_on_gradients, gradients_before_the_hook),
    Case(gradients_in_one_buffer, moving_shared_tensors),
    Case(steps_left_out_for_nan, believing_parts),
    Case(steps_during_backward, iterations_ending_activations),
]
