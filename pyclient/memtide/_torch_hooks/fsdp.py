"""Adopts this rank's shards of parameters of `torch.distributed.fsdp.fully_shard`.

A sharded parameter is a DTensor, which wraps this rank's shard. torch has a second tensor over the
same bytes, padded, from which it gathers the whole parameter; both are moved together. Optimizer
states of a shard are created in chunks (step_dispatch.py). A gradient's shard arrives in a buffer
with others, and is copied. Whole parameters, gathered for one module at a time, stay in torch's
memory (docs/decisions/0020).

No public name reaches these tensors. In a torch version that has them elsewhere, nothing is moved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from memtide._capi.client import Kind
from memtide._memory.adoption import adopt_part_of_gradient, adopt_together
from memtide._memory.managed_memory import ManagedMemory
from memtide._torch_hooks.module_hooks import ModuleHooks
from memtide._util.devices import gpu_module


def making(memory: ManagedMemory, original: Callable[..., None]) -> Callable[..., None]:
    """The methods of FSDPParam that create its tensors, or take over those of the script."""

    @functools.wraps(original)
    def make(parameter: Any, *args: Any, **kwargs: Any) -> None:
        original(parameter, *args, **kwargs)
        if memory.addresses.here:
            _adopt(memory, parameter)

    return make


def _adopt(memory: ManagedMemory, parameter: Any) -> None:
    padded, part = parameter._sharded_param_data, parameter.sharded_param._local_tensor
    over = [padded, part]
    if padded._base is not None and padded._base is not part:
        over.append(padded._base)
    moved = adopt_together(memory, over, Kind.PARAMETER)
    if moved:
        parameter._sharded_param_data, parameter.sharded_param._local_tensor, *_ = moved


def reducing(memory: ManagedMemory, original: Callable[..., None]) -> Callable[..., None]:
    """FSDPParamGroup.post_backward, after which gradients are complete in host memory. On a GPU
    they are reduced beside the backward pass of the next group, after which they are adopted: torch
    waits for them there, too, before it reduces more."""
    reduced: list[weakref.ref[Any]] = []  # At most the group before this one.

    @functools.wraps(original)
    def post_backward(group: Any, *args: Any) -> None:
        original(group, *args)
        if not memory.addresses.here or memory.ledger.holding:
            return  # While all chunks are held gradients stay where they are, as all others do.
        if gpu_module(group.device.type) is None:
            _adopt_gradients(memory, group)
            return
        before = [known for each in reduced if (known := each()) not in (None, group)]
        reduced[:] = [weakref.ref(group)]
        for each in before:
            each._wait_for_post_backward()
            _adopt_gradients(memory, each)

    return post_backward


def finalizing(memory: ManagedMemory, original: Callable[..., None]) -> Callable[..., None]:
    """FSDPParamGroup.finalize_backward, which waits for the last gradients that are reduced on a
    GPU."""

    @functools.wraps(original)
    def finalize_backward(group: Any, *args: Any) -> None:
        original(group, *args)
        if memory.addresses.here and not memory.ledger.holding:
            _adopt_gradients(memory, group)

    return finalize_backward


def _adopt_gradients(memory: ManagedMemory, group: Any) -> None:
    for parameter in group.fsdp_params:
        adopt_part_of_gradient(memory, parameter.sharded_param)


def gathering(module_hooks: ModuleHooks, original: Callable[..., Any]) -> Callable[..., Any]:
    """foreach_all_gather, which reads this rank's shards of the parameters of some modules."""

    @functools.wraps(original)
    def foreach_all_gather(parameters: list[Any], *args: Any, **kwargs: Any) -> Any:
        with module_hooks.gathering([p._sharded_param_data for p in parameters]):
            return original(parameters, *args, **kwargs)

    return foreach_all_gather
