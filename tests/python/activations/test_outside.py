"""A block that changes variables outside of its modules runs once: they change once."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from chosen_activations import check
from memtide._activations.outside import variables_of
from torch import nn

_WIDTH = 32
_losses: list[torch.Tensor] = []
_average = {"mean": torch.zeros(_WIDTH)}
_number = 0
_settings = types.ModuleType("settings_of_the_script")
_settings.scale = 1.0  # type: ignore[attr-defined]


class Block(nn.Module):
    """A block of any function of itself and its input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.function = function

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.function(self, value)


def appends_to_a_global_list() -> Callable[..., torch.Tensor]:
    _losses.clear()

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        result = block.linear(value).exp().tanh()
        _losses.append(result.square().mean())
        return result

    return function


def averages_in_a_global_dict() -> Callable[..., torch.Tensor]:
    _average["mean"] = torch.zeros(_WIDTH)

    def note(value: torch.Tensor) -> None:
        _average["mean"] = 0.9 * _average["mean"] + 0.1 * value.detach().mean(0)

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        note(value)
        return (block.linear(value) - _average["mean"]).exp().tanh()

    return function


def counts_in_a_global_variable() -> Callable[..., torch.Tensor]:
    global _number
    _number = 0

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        def scaled(result: torch.Tensor) -> torch.Tensor:
            global _number
            _number += 1
            return result * (1 + _number % 3)

        return scaled(block.linear(value)).exp().tanh()

    return function


def counts_in_a_closure() -> Callable[..., torch.Tensor]:
    number = 0

    def count() -> int:
        nonlocal number
        number += 1
        return number

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * (1 + count() % 3)).exp().tanh()

    return function


def counts_in_another_file() -> Callable[..., torch.Tensor]:
    settings: Any = _settings
    settings.scale = 1.0

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        _settings.scale *= 1.1  # type: ignore[attr-defined]
        return (block.linear(value) * _settings.scale).exp().tanh()

    return function


def draws_from_a_generator_of_torch() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * torch.rand(1, generator=generator)).exp().tanh()

    return function


def draws_from_one_of_python() -> Callable[..., torch.Tensor]:
    generator = random.Random(3)
    return lambda block, value: (block.linear(value) * generator.random()).exp().tanh()


def draws_from_one_of_numpy() -> Callable[..., torch.Tensor]:
    generator = numpy.random.default_rng(3)
    return lambda block, value: (block.linear(value) * generator.random()).exp().tanh()


EFFECTS = [
    appends_to_a_global_list,
    averages_in_a_global_dict,
    counts_in_a_global_variable,
    counts_in_a_closure,
    counts_in_another_file,
    draws_from_a_generator_of_torch,
    draws_from_one_of_python,
    draws_from_one_of_numpy,
]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
def test_what_a_block_does_outside_is_done_once(
    effect: Callable[[], Callable[..., torch.Tensor]],
) -> None:
    def build() -> nn.Module:
        function = effect()
        return nn.ModuleList(Block(function) for _ in range(3))

    def step(model: nn.Module) -> torch.Tensor:
        _losses.clear()
        value = torch.randn(_WIDTH, _WIDTH)
        for block in model.children():
            value = block(value)
        loss = value.square().mean() + sum(_losses)
        loss.backward()
        return loss

    check("recompute", build, step, alone="it changes variables outside of its modules")


def test_constants_outside_are_no_reason() -> None:
    scales = [1.0, 2.0]

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * scales[1]).exp().tanh()

    def build() -> nn.Module:
        return nn.ModuleList(Block(function) for _ in range(3))

    def step(model: nn.Module) -> torch.Tensor:
        value = torch.randn(_WIDTH, _WIDTH)
        for block in model.children():
            value = block(value)
        loss = value.square().mean()
        loss.backward()
        return loss

    check("recompute", build, step)


def test_functions_of_torch_are_not_looked_into() -> None:
    names = {name for (_, name), _ in variables_of([nn.Linear(2, 2), nn.MultiheadAttention(4, 2)])}
    assert not names
