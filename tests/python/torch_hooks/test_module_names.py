"""Modules are named by their paths."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from memtide._torch_hooks.module_names import ModuleNames
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook


@pytest.fixture
def names() -> Iterator[ModuleNames]:
    names = ModuleNames()
    handle = register_module_module_registration_hook(names.registered)
    yield names
    handle.remove()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2, 2), nn.GELU())


def model() -> nn.Module:
    return nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()])})


def test_a_path_is_that_of_named_modules(names: ModuleNames) -> None:
    named = dict(model().named_modules())
    assert {path: names.of(module) for path, module in named.items()} == {
        path: path or "ModuleDict" for path in named
    }


def test_a_model_that_was_there_before_is_known_when_it_is_named() -> None:
    names, made = ModuleNames(), model()
    linear = made["blocks"][1].mlp[0]  # type: ignore[index]
    assert names.of(linear) == "Linear"
    names.know(made)
    assert names.of(linear) == "blocks.1.mlp.0"


def test_a_copy_has_the_name_of_its_class(names: ModuleNames) -> None:
    assert names.of(copy.deepcopy(model())["blocks"][0].mlp[0]) == "Linear"  # type: ignore[index]


def test_a_module_in_two_places_has_the_first_ones_name(names: ModuleNames) -> None:
    shared = nn.Linear(2, 2)
    both = nn.ModuleDict({"one": nn.Sequential(shared), "other": nn.Sequential(shared)})
    assert names.of(shared) == "one.0"
    del both


def test_the_end_of_a_long_path_is_kept(names: ModuleNames) -> None:
    linear = at = nn.Linear(2, 2)
    outer_modules = []
    for _ in range(40):
        at = nn.ModuleDict({"layer": at})
        outer_modules.append(at)
    path = names.of(linear)
    assert path.startswith("...")
    assert path.endswith("layer.layer")
    assert len(path.encode()) == 64


def test_a_parameter_is_found_by_any_address_in_it(names: ModuleNames) -> None:
    made = model()
    weight, bias = made["blocks"][1].mlp[0].parameters()  # type: ignore[index]
    start, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
    assert names.parameter_at(start) == names.parameter_at(end - 4) == "blocks.1.mlp.0.weight"
    assert names.parameter_at(end) != "blocks.1.mlp.0.weight"
    assert names.parameter_at(start - 1) != "blocks.1.mlp.0.weight"
    assert names.parameter_at(bias.data_ptr()) == "blocks.1.mlp.0.bias"


def test_the_parameters_of_a_chunk_are_named_in_their_order(names: ModuleNames) -> None:
    made = model()
    weight, bias = made["blocks"][1].mlp[0].parameters()  # type: ignore[index]
    first, last = sorted((weight, bias), key=lambda tensor: tensor.data_ptr())
    found = names.parameters_in(first.data_ptr(), last.data_ptr() + 1)
    wanted = [
        "blocks.1.mlp.0." + ("weight" if each is weight else "bias") for each in (first, last)
    ]
    assert [name for name in found if name.startswith("blocks.1.mlp.0.")] == wanted
    assert names.parameters_in(1, 2) == []


def test_a_model_s_own_parameter_has_its_name_alone(names: ModuleNames) -> None:
    outer = model()
    outer.register_parameter("none", None)
    outer.scale = nn.Parameter(nn.Linear(2, 2).weight.detach())
    assert names.parameter_at(outer.scale.data_ptr()) == "scale"


def test_an_address_of_no_parameter_is_that_of_a_parameter_unknown(names: ModuleNames) -> None:
    made = model()
    assert names.parameter_at(1) == "a parameter"
    del made
