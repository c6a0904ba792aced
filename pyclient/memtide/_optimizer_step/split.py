"""Divides the parameters of one call of a functional optimizer: those that are stepped in parts,
and those that torch's function steps at once (docs/optimizers.md has the table)."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from memtide._memory.adoption import adopt_gradient
from memtide._memory.managed_memory import ManagedMemory
from memtide._memory.tensor_layout import have_same_layout, is_dense
from memtide._memory.tensor_parts import computes_as_plain, local_part
from memtide._optimizer_step.partition import Span, Update
from memtide._optimizer_step.torch_functional import (
    Arguments,
    FunctionalSignature,
    single_numbers_of,
)
from memtide._optimizer_step.torch_options import TensorNumber, TorchOptions

_STEPPED_DTYPES = (torch.float32, torch.bfloat16)  # Parameters (or their masters) and states.
_DTYPES = (*_STEPPED_DTYPES, torch.float16)  # Gradients, and parameters that have masters.
# The options that differ between the parameters of one call.
_OWN_OPTIONS = (
    *("step", "fresh_states", "parameter_format", "gradient_format", "state_format"),
    "rounded_format",
)


@dataclass
class Split:
    """The indices of a call's lists that are stepped in parts, with their updates, and the rest."""

    updates: list[Update] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


def split(
    form: FunctionalSignature,
    arguments: Arguments,
    options: TorchOptions,
    memory: ManagedMemory,
    next_numbers: Sequence[tuple[TensorNumber, ...]],
    can_make: Callable[[TorchOptions, int], bool],
    common: Set[int],
) -> Split:
    """Divides the parameters of a call. `can_make`: whether parts with some options that change a
    number of tensors have the right bits. For what has parts, a state that is None is created,
    uninitialized: the option `fresh_states` lets the step begin it. `common`: the indices of those
    that write to what another uses, and of that one. Torch steps parameters one after the other,
    and parts all read the old bytes, so these have none."""
    result = Split()
    # By the options of a parameter, those of its update; None: its parts would have other bits.
    options_by_key: dict[tuple[object, ...], TorchOptions | None] = {}
    lists = [arguments[name] for name in form.states if arguments[name]]
    gradients = arguments[form.gradients]
    masters = 1 if form.has_masters and arguments[form.states[0]] else 0
    for index, parameter in enumerate(arguments["params"]):
        if not memory.addresses.manages(local_part(gradients[index])):
            adopt_gradient(memory, parameter)
        sharded = parameter is not local_part(parameter)
        parameter, gradient = local_part(parameter), local_part(gradients[index])
        states = [local_part(values[index]) for values in lists]
        step = arguments[form.steps][index] if form.steps is not None else None
        fresh = any(state is None for state in states)
        is_torch_s = index in common or (fresh and sharded)
        if is_torch_s or not _has_parts(memory, parameter, gradient, states, step, masters):
            result.rest.append(index)
            continue
        parameter_options = _own_options(parameter, gradient, states, step, masters)
        numbers = single_numbers_of(form, arguments, index)
        key = (parameter_options, numbers, next_numbers[index])
        if key not in options_by_key:
            changes: dict[str, Any] = dict(zip(_OWN_OPTIONS, parameter_options, strict=True))
            own = replace(
                options,
                single_numbers=numbers,
                next_single_numbers=next_numbers[index],
                **changes,
            )
            options_by_key[key] = own if can_make(own, 1 + len(lists)) else None
        its_options = options_by_key[key]
        if its_options is None:
            result.rest.append(index)
            continue
        if fresh:
            new_state = memory.allocator.state
            states = [new_state(gradient, row, parameter) for row, _ in enumerate(lists)]
            for values, state in zip(lists, states, strict=True):
                values[index] = state
        written = (_span(parameter), *map(_span, states))
        first = arguments["first_elements"][index] if "first_elements" in arguments else 0
        result.updates.append(
            Update(its_options, parameter.numel(), _span(gradient), written, first)
        )
        result.indices.append(index)
    return result


def _own_options(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    states: Sequence[torch.Tensor | None],
    step: Any,
    masters: int,
) -> tuple[object, ...]:
    """The values of _OWN_OPTIONS for a parameter, whose states are all there or all None."""
    fresh = any(state is None for state in states)
    stepped = states[0] if masters else parameter
    last_state = gradient if fresh else states[-1] if states else None
    assert stepped is not None
    return (
        int(step.item()) + 1 if step is not None else 1,
        fresh,
        stepped.dtype,
        gradient.dtype,
        last_state.dtype if last_state is not None else torch.float32,
        parameter.dtype if masters else None,
    )


def part_of(arguments: Arguments, count: int, indices: list[int]) -> Arguments:
    """The arguments of a call with some of its `count` parameters."""
    return {
        name: [value[index] for index in indices] if _is_list_of(value, count) else value
        for name, value in arguments.items()
    }


def put_back(arguments: Arguments, part: Arguments, count: int, indices: list[int]) -> None:
    """Copies what a call with `part` has stored in its lists back to the whole lists."""
    for name, value in arguments.items():
        if _is_list_of(value, count):
            for index, item in zip(indices, part[name], strict=True):
                value[index] = item


def _is_list_of(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count


def _has_parts(
    memory: ManagedMemory,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    states: Sequence[torch.Tensor | None],
    step: Any,
    masters: int,
) -> bool:
    present = [state if state is not None else gradient for state in states]
    tensors = [gradient, parameter, *present]
    stepped, moments = [parameter, *present][masters], present[masters:]
    if step is not None and not (isinstance(step, torch.Tensor) and step.numel() == 1):
        return False
    return (
        all(memory.addresses.manages(tensor) and tensor.dtype in _DTYPES for tensor in tensors)
        and all(map(computes_as_plain, tensors))
        and all(tensor.dtype in _STEPPED_DTYPES for tensor in (stepped, *moments))
        and not (masters and (stepped.dtype, parameter.itemsize) != (torch.float32, 2))
        and len({tensor.dtype for tensor in moments}) <= 1
        and is_dense(parameter)
        and have_same_layout(parameter, (gradient, *present))
    )


def _span(tensor: torch.Tensor) -> Span:
    return Span(tensor.data_ptr(), tensor.itemsize)
