"""Finds layers of a script that cannot be changed, by the path that its user gives.

A path begins at a variable of the script, or at any module of a model: `model.blocks`, `blocks` and
`decoder.blocks` may all name the same module.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

import torch
from memtide.errors import InvalidArgument
from torch import nn

from memtide_methods.sharing.live_modules import roots_with

# Modules that wrap another one, which the user of a script does not have in mind.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_SHOWN = 8


def layers_in(module: nn.Module) -> list[nn.Module]:
    """The children of a module that have parameters: a Sequential may have activations between."""
    return [child for child in module.children() if any(True for _ in child.parameters())]


def find(path: str, trained: Collection[torch.Tensor]) -> nn.Module | None:
    """The module at `path`, if it has one of the `trained` parameters.

    It is what a variable of the calling functions leads to, or else the module of the models with
    these parameters whose path is `path`, or ends in it. The first name of `path` may be left out,
    such as the name of a variable that is not found. None: there is no such module.
    InvalidArgument: there are several.
    """
    by_variable = list(_by_variables(path))
    for module in by_variable:
        if any(p in trained for p in module.parameters()):
            return module
    if by_variable:  # Another optimizer trains it.
        return None
    places = _places(trained)
    rest = path.partition(".")[2]
    for wanted, is_whole in ((path, True), (rest, True), (path, False), (rest, False)):
        found = {id(m): (p, m) for p, m in places if wanted and _fits(p, wanted, is_whole=is_whole)}
        if len(found) > 1:
            listed = " or ".join(f"{place or 'the model'}" for place, _ in found.values())
            raise InvalidArgument(
                f"{path} is {listed}: give more of the path, from the model or the script's "
                "variable on"
            )
        for _, module in found.values():
            return module
    return None


def advice(trained: Collection[torch.Tensor]) -> str:
    """The names that could be given in the models with these parameters, in a sentence."""
    listed = [
        f"{place or 'the model'} ({len(layers)} layers)"
        for place, module in _places(trained)
        if len(layers := layers_in(module)) > 1 and len({_kind(layer) for layer in layers}) == 1
    ]
    if not listed:
        return "no module of the trained model has several layers that are alike"
    more = ", ..." if len(listed) > _SHOWN else ""
    return "layers that are alike are in " + ", ".join(listed[:_SHOWN]) + more


def _by_variables(path: str) -> Iterator[nn.Module]:
    first, _, rest = path.partition(".")
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("memtide."):
            continue
        for variables in (frame.f_locals, frame.f_globals):
            value = variables.get(first)
            if value is not None and issubclass(type(value), nn.Module):
                try:
                    yield value.get_submodule(rest)
                except AttributeError:
                    continue


def _places(trained: Collection[torch.Tensor]) -> list[tuple[str, nn.Module]]:
    """Each module of the models, and its path."""
    return [
        (".".join(part for part in path.split(".") if part not in _WRAPPERS), module)
        for root in roots_with(trained)
        for path, module in root.named_modules()
        if any(p in trained for p in module.parameters())
    ]


def _fits(place: str, wanted: str, *, is_whole: bool) -> bool:
    return place == wanted if is_whole else place.endswith("." + wanted)


def _kind(layer: nn.Module) -> tuple[object, ...]:
    return tuple((name, p.shape, p.dtype) for name, p in layer.named_parameters())
