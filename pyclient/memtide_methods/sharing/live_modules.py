"""The modules of this process, whichever way the script made them: called, copied or unpickled."""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence

import torch
from memtide.errors import InvalidArgument
from torch import nn


def live_modules() -> list[nn.Module]:
    """All that Python's collector tracks. It takes some tenths of a second in a large process."""
    # The class of a proxy is asked for by `type`: `isinstance` would call into the proxy.
    return [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]


def roots_with(parameters: Collection[torch.Tensor]) -> list[nn.Module]:
    """The modules that are in no other one, and have at least one of these parameters."""
    modules = live_modules()
    inner = {id(child) for module in modules for child in module.children()}
    return [
        module
        for module in modules
        if id(module) not in inner and any(p in parameters for p in module.parameters())
    ]


def check_untied(layers: Sequence[nn.Module]) -> None:
    """InvalidArgument: a module outside of the layers has a parameter of theirs."""
    inside = {id(module) for layer in layers for module in layer.modules()}
    own = {
        parameter: f"{name} of layer {number}"
        for number, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
    }
    for module in live_modules():
        if id(module) in inside:
            continue
        for name, parameter in (getattr(module, "_parameters", None) or {}).items():
            if parameter is not None and parameter in own:
                raise InvalidArgument(
                    f"{own[parameter]} is also the {name} of a {type(module).__name__} outside of "
                    "the layers: layers that share parameters must not be tied to other modules"
                )
