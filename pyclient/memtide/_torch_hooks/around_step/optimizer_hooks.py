"""`torch.optim.Optimizer`: what memtide does around each step, and before the hooks after it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.optim import Optimizer

from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._torch_hooks.patching.attributes import Function, is_marked, marked

# The context of a step, of the runtime that there is when the step begins.
Around = Callable[[Optimizer], AbstractContextManager[None]]


def _inside(around: Around) -> Function:
    """A function that runs a step inside `around`. A script may compile a function that steps:
    torch.compile would trace what memtide does there, too, so it leaves the call as it is."""

    def run(optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        with around(optimizer):
            return step()

    uncompiled: Function = torch.compiler.disable(run)
    return uncompiled


def wrapping_step(around: Around, step: Function) -> Function:
    """`step` of an optimizer class."""
    if is_marked(step):
        return step
    run = _inside(around)

    @functools.wraps(step)
    def stepped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return run(optimizer, functools.partial(step, optimizer, *args, **kwargs))

    return marked(stepped)


def wrapping_own_step(around: Around, optimizer: Optimizer, step: Function) -> Function:
    """`step` of one optimizer, which a scheduler that is older than the hooks has put there."""
    if is_marked(step):
        return step
    run = _inside(around)

    @functools.wraps(step)
    def stepped(_optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return run(optimizer, functools.partial(step, *args, **kwargs))

    return types.MethodType(marked(stepped), optimizer)  # Schedulers ask for its __func__.


def hooking_steps(around: Around, original: Function) -> Function:
    """torch.optim.Optimizer.profile_hook_step, by which torch wraps the step of each class."""

    @functools.wraps(original)
    def profile_hook_step(step: Function) -> Function:
        return wrapping_step(around, original(step))

    return profile_hook_step


def finishing_steps(offloaded: OffloadedSteps, original: Function) -> Function:
    """torch.optim.Optimizer._optimizer_step_code, between a step and the hooks that look at it."""

    @functools.wraps(original)
    def _optimizer_step_code(optimizer: Optimizer) -> None:
        original(optimizer)
        offloaded.finish()

    return _optimizer_step_code
