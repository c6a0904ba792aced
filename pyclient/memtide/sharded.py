"""Parameters that `torch.distributed.fsdp.fully_shard` shards: this rank's part of each, in chunks.

A sharded parameter is a DTensor, which wraps this rank's part; torch keeps a second tensor over the
same bytes, padded, from which it gathers the whole. Both are moved together. What an optimizer
keeps for a part is born beside it (step.py). Of a gradient, this rank's part comes in one buffer
with others', and is copied. The whole parameters that torch gathers for a module's turn stay its
own.

Nothing public tells where these tensors are: of another torch that keeps them elsewhere, nothing is
moved.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from memtide._native import Kind
from memtide.adopt import Adopter
from memtide.importhook import after_import
from memtide.moments import Moments

PARAMETER_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param"
GROUP_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def install(adopter: Adopter, moments: Moments, wrap: Callable[..., None]) -> None:
    """Follows each sharded parameter, once torch's modules that make them are imported. `wrap`: as
    Runtime._wrap."""

    def parameters() -> None:
        kind = getattr(sys.modules[PARAMETER_MODULE], "FSDPParam", None)
        names = ("_init_sharded_param", "reset_sharded_param")
        fields = getattr(kind, "__annotations__", {})
        if "_sharded_param_data" in fields and all(hasattr(kind, name) for name in names):
            for name in names:
                wrap(kind, name, functools.partial(_making, adopter))

    def groups() -> None:
        module = sys.modules[GROUP_MODULE]
        if hasattr(module, "foreach_all_gather"):
            wrap(module, "foreach_all_gather", functools.partial(_gathering, moments))
        # On a GPU gradients are reduced beside what comes next, which waits for them at the end.
        kind = getattr(module, "FSDPParamGroup", None)
        for name, kinds in (("post_backward", ("cpu",)), ("finalize_backward", ("cpu", "cuda"))):
            if hasattr(kind, name):
                wrap(kind, name, functools.partial(_reducing, adopter, kinds))

    after_import(PARAMETER_MODULE, parameters)
    after_import(GROUP_MODULE, groups)


def _making(adopter: Adopter, original: Callable[..., None]) -> Callable[..., None]:
    """FSDPParam's functions that make its tensors, or take them from what a script has made."""

    @functools.wraps(original)
    def make(parameter: Any, *args: Any, **kwargs: Any) -> None:
        original(parameter, *args, **kwargs)
        if adopter.here:
            _adopt(adopter, parameter)

    return make


def _adopt(adopter: Adopter, parameter: Any) -> None:
    padded, part = parameter._sharded_param_data, parameter.sharded_param._local_tensor
    over = [padded, part]
    if padded._base is not None and padded._base is not part:
        over.append(padded._base)
    moved = adopter.adopt_together(over, Kind.PARAMETER)
    if moved:
        parameter._sharded_param_data, parameter.sharded_param._local_tensor, *_ = moved


def _reducing(
    adopter: Adopter, kinds: tuple[str, ...], original: Callable[..., None]
) -> Callable[..., None]:
    """FSDPParamGroup's functions after which gradients are there, on devices of these kinds."""

    @functools.wraps(original)
    def reduce(group: Any, *args: Any) -> None:
        original(group, *args)
        if adopter.here and group.device.type in kinds:
            for parameter in group.fsdp_params:
                adopter.adopt_part_of_gradient(parameter.sharded_param)

    return reduce


def _gathering(moments: Moments, original: Callable[..., Any]) -> Callable[..., Any]:
    """foreach_all_gather: reads this rank's parts of the parameters of some modules."""

    @functools.wraps(original)
    def foreach_all_gather(parameters: list[Any], *args: Any, **kwargs: Any) -> Any:
        with moments.gathering([p._sharded_param_data for p in parameters]):
            return original(parameters, *args, **kwargs)

    return foreach_all_gather
