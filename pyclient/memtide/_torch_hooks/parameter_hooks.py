"""Torch's functions through which parameters come to be, or come to ranks, with hooks added.

Each takes the function it replaces. Where parameters come to be, it calls that first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from memtide._torch_hooks.module_hooks import ModuleHooks

Function = Callable[..., Any]


def applying(module_hooks: ModuleHooks, original: Function) -> Function:
    """torch.nn.Module._apply: `to`, `half`, `share_memory` replace what parameters are over."""

    @functools.wraps(original)
    def _apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        for parameter in module._parameters.values():
            if parameter is not None:
                module_hooks.adopt_parameter(parameter)
        return result

    return _apply


def deep_copying(module_hooks: ModuleHooks, original: Function) -> Function:
    """torch.nn.Parameter.__deepcopy__."""

    @functools.wraps(original)
    def __deepcopy__(parameter: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
        copied = original(parameter, memo)
        module_hooks.adopt_parameter(copied)
        return copied

    return __deepcopy__


def adding_groups(
    module_hooks: ModuleHooks, on_optimizer: Callable[[Optimizer], None], original: Function
) -> Function:
    """torch.optim.Optimizer.add_param_group, which every optimizer's making calls as well."""

    @functools.wraps(original)
    def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        for parameter in optimizer.param_groups[-1]["params"]:
            module_hooks.adopt_parameter(parameter)
        on_optimizer(optimizer)
        return result

    return add_param_group


def wrapping_models(on_wrapping: Callable[[nn.Module, nn.Module], None], original: Function) -> Any:
    """torch.nn.parallel.DistributedDataParallel.__init__."""

    @functools.wraps(original)
    def __init__(wrapping: nn.Module, *args: Any, **kwargs: Any) -> None:
        model = args[0] if args else kwargs.get("module")
        if isinstance(model, nn.Module):
            on_wrapping(wrapping, model)
        original(wrapping, *args, **kwargs)

    return __init__
