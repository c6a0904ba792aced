"""The layers that a user names by a path are found from variables, or in the trained model."""

from __future__ import annotations

import re

import pytest
import torch
from memtide.errors import InvalidArgument
from memtide_methods.sharing.named_layers import advice, find, layers_in
from torch import nn


def _layers(count: int = 3) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(count))


def _two_stacks() -> nn.Module:
    return nn.ModuleDict(
        {name: nn.ModuleDict({"blocks": _layers()}) for name in ("encoder", "decoder")}
    )


def _trained(*models: nn.Module) -> set[torch.Tensor]:
    return {parameter for model in models for parameter in model.parameters()}


def test_a_path_may_begin_at_a_variable_or_at_any_module() -> None:
    hidden = [_two_stacks()]  # In no variable that a path could begin with.
    trained = _trained(*hidden)
    wanted = hidden[0].get_submodule("decoder.blocks")
    for path in ("decoder.blocks", "net.decoder.blocks"):
        assert find(path, trained) is wanted
    assert find("decoder.layers", trained) is None
    outer = [nn.ModuleDict({"net": hidden[0]})]
    assert find("decoder.blocks", trained) is wanted
    assert outer


def test_a_path_with_several_meanings_is_refused_with_all_of_them() -> None:
    hidden = [_two_stacks()]
    with pytest.raises(
        InvalidArgument, match=re.escape("encoder.blocks or decoder.blocks: give more of the path")
    ):
        find("blocks", _trained(*hidden))


def test_a_variable_decides_and_what_another_optimizer_trains_is_left_alone() -> None:
    first, second = (nn.ModuleDict({"blocks": _layers()}) for _ in range(2))
    trained = _trained(first, second)
    assert find("second.blocks", trained) is second["blocks"]
    assert find("first.blocks", trained) is first["blocks"]
    assert find("second.blocks", _trained(first)) is None


def test_modules_without_parameters_are_no_layers() -> None:
    stack = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    assert layers_in(stack) == [stack[0], stack[2]]
    hidden = [nn.ModuleDict({"stack": stack, "head": nn.Linear(4, 2)})]
    assert advice(_trained(*hidden)) == "layers that are alike are in stack (2 layers)"
    alone = nn.Linear(4, 4)
    assert (
        advice(_trained(alone))
        == "no module of the trained model has several layers that are alike"
    )
