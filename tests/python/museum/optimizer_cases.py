"""Optimizers: what they are to do, and what they know."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from memtide._memory.adoption import adopt_state_of
from memtide._memory.alignment import SMALLEST_BYTES
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_parts import tensors_in
from memtide._optimizer_step import offloaded_step, torch_functional
from memtide._optimizer_step.torch_functional import Arguments, FunctionalSignature
from memtide._optimizer_step.torch_options import TorchOptions
from memtide._torch_hooks.around_step import stepped_states
from museum import STEPS, Case, Results, adamw, batch, network, values
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def rates_of_groups_and_of_a_schedule() -> Results:
    """Two groups with rates and decays of their own, which a scheduler changes, and the script."""
    model = network(40)
    weights = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [
        {"params": [*weights[:2], *others], "lr": 0.02, "weight_decay": 0.0},
        {"params": weights[2:], "lr": 0.01, "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.02, 0.01], total_steps=STEPS + 1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(40)).square().mean()
        loss.backward()
        if step == 5:
            optimizer.param_groups[1]["lr"] *= 0.1
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return [*losses, torch.tensor(schedule.get_last_lr()), *values(model, optimizer)]


def options_as_at_first(patch: pytest.MonkeyPatch) -> None:
    options_of = offloaded_step.torch_options_of
    first: list[TorchOptions | None] = []

    def of_the_first_call(*call: Any, has_plain_bits: bool) -> TorchOptions | None:
        if not first:
            first.append(options_of(*call, has_plain_bits=has_plain_bits))
        return first[0]

    patch.setattr(offloaded_step, "torch_options_of", of_the_first_call)


class _Coarse(TorchDispatchMode):
    """Numbers of few bits, as formats of them are emulated."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.addcdiv_.default:
            result.copy_(result.to(torch.bfloat16))
        elif func is torch.ops.aten._foreach_addcdiv_.ScalarList:
            for tensor in args[0]:
                tensor.copy_(tensor.to(torch.bfloat16))
        return result


def steps_in_a_mode_of_the_script() -> Results:
    """Each second step is made in numbers of few bits."""
    model = network()
    optimizer = adamw(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        with _Coarse() if step % 2 else contextlib.nullcontext():
            optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def parts_in_no_mode(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch_functional, "in_mode_of_script", lambda: False)


def resumed_from_a_checkpoint() -> Results:
    """Half of the steps, and the other half from what torch.save has written."""
    file, losses = io.BytesIO(), []
    for half in range(2):
        model = network()
        optimizer = adamw(model)
        if half:
            file.seek(0)
            saved = torch.load(file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        for _ in range(STEPS // 2):
            optimizer.zero_grad()
            loss = model(batch()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states, file)
    return [*losses, *values(model, optimizer)]


def states_that_begin_again(patch: pytest.MonkeyPatch) -> None:
    """A state that comes into a chunk begins as a new one does."""

    def begin(memory: ManagedMemory, parameter: Any, state: Any) -> None:
        for tensor in tensors_in(state):
            if tensor.nbytes >= SMALLEST_BYTES and not memory.addresses.manages(tensor):
                tensor.zero_()
        adopt_state_of(memory, parameter, state)

    patch.setattr(stepped_states, "adopt_state_of", begin)


def momentum_that_begins_late() -> Results:
    """A layer has its first gradient, and with it a momentum buffer, when others have theirs."""
    model = network(depth=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (model[0 if step >= 4 else 2 :](batch()) - 1).square().mean()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def no_state_is_fresh(patch: pytest.MonkeyPatch) -> None:
    """A parameter that is stepped for the first time has states of zeros, as after a step."""
    split = offloaded_step.split

    def from_zeros(
        form: FunctionalSignature,
        arguments: Arguments,
        options: TorchOptions,
        memory: Any,
        *more: Any,
    ) -> Any:
        for values_of_state in (arguments[name] for name in form.states if arguments[name]):
            for index, parameter in enumerate(arguments["params"]):
                if values_of_state[index] is None and parameter.nbytes >= SMALLEST_BYTES:
                    values_of_state[index] = memory.allocator.state(parameter, 0, parameter).zero_()
        return split(form, arguments, options, memory, *more)

    patch.setattr(offloaded_step, "split", from_zeros)


def a_graph_of_weights_before_the_step() -> Results:
    """Two losses of one model, as a GAN's: when one has been stepped, torch refuses the other's
    backward pass, which would multiply by weights that are not those of its forward pass."""
    model = network()
    optimizer = adamw(model)
    losses, refused = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        one, other = (model(batch()).square().mean() for _ in range(2))
        one.backward()
        optimizer.step()
        if step >= 4:
            try:
                other.backward()
            except RuntimeError as error:
                refused.append("modified by an inplace operation" in str(error))
        losses += [one.detach(), other.detach()]
    return [*losses, torch.tensor(refused), *values(model, optimizer)]


def a_value_kept_by_the_version_of_a_state() -> Results:
    """The rate follows a moment, whose mean is computed anew when its version has changed."""
    model = network()
    optimizer = adamw(model)
    losses = []
    version, mean = -1, 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        moment = optimizer.state[model[0].weight].get("exp_avg_sq")
        if moment is not None and moment._version != version:
            version, mean = moment._version, moment.mean().item()
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + 1e6 * mean)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *values(model, optimizer)]


def steps_that_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A step in parts leaves the versions of the parameters as they were."""
    patch.setattr(offloaded_step, "increment_version", lambda _: None)


CASES = [
    Case(rates_of_groups_and_of_a_schedule, options_as_at_first),
    Case(steps_in_a_mode_of_the_script, parts_in_no_mode),
    Case(resumed_from_a_checkpoint, states_that_begin_again),
    Case(momentum_that_begins_late, no_state_is_fresh),
    Case(a_graph_of_weights_before_the_step, steps_that_are_not_counted),
    Case(a_value_kept_by_the_version_of_a_state, steps_that_are_not_counted),
]
