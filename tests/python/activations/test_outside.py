"""A block that changes variables outside of its modules runs once: they change once."""

from __future__ import annotations

import array
import contextlib
import contextvars
import functools
import importlib
import io
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from chosen_activations import check
from memtide._activations.outside import OutsideVariables
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


def counts_in_a_context() -> Callable[..., torch.Tensor]:
    _calls.set(0)

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        _calls.set(_calls.get() + 1)
        return (block.linear(value) * (1 + _calls.get() % 3)).exp().tanh()

    return function


_calls = contextvars.ContextVar("calls", default=0)


def counts_in_a_dictionary_of_a_context() -> Callable[..., torch.Tensor]:
    _counts.set({"calls": [0]})

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        _counts.get()["calls"].append(1)
        return (block.linear(value) * (1 + len(_counts.get()["calls"]) % 3)).exp().tanh()

    return function


_counts: contextvars.ContextVar[dict[str, list[int]]] = contextvars.ContextVar("counts")


def counts_in_a_partial_function() -> Callable[..., torch.Tensor]:
    longer = functools.partial(_longer, [0])
    return lambda block, value: (block.linear(value) * (1 + longer() % 3)).exp().tanh()


def _longer(numbers: list[int]) -> int:
    numbers.append(0)
    return len(numbers)


def counts_in_another_module() -> Callable[..., torch.Tensor]:
    around = nn.Module()
    around.calls = 0
    held = [around]  # So that torch does not take it for a part of the block.

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        held[0].calls += 1
        return (block.linear(value) * (1 + held[0].calls % 3)).exp().tanh()

    return function


def counts_with_an_iterator() -> Callable[..., torch.Tensor]:
    numbers = itertools.count()
    return lambda block, value: (block.linear(value) * (1 + next(numbers) % 3)).exp().tanh()


def counts_in_an_array() -> Callable[..., torch.Tensor]:
    counts = array.array("d", [0.0])

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        counts.append(1.0)
        return (block.linear(value) * (1 + len(counts) % 3)).exp().tanh()

    return function


def counts_in_an_array_of_numpy() -> Callable[..., torch.Tensor]:
    counts = numpy.zeros(8)

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return (block.linear(value) * (1 + counts[0] % 3)).exp().tanh()

    return function


def counts_in_a_default() -> Callable[..., torch.Tensor]:
    _count.__defaults__[0][:] = [0]  # type: ignore[index]
    return lambda block, value: (block.linear(value) * (1 + _count() % 3)).exp().tanh()


def _count(number: list[int] = [0]) -> int:  # noqa: B006  # That is the effect.
    number[0] += 1
    return number[0]


def counts_in_a_class() -> Callable[..., torch.Tensor]:
    _Schedule.turns = 0

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * (1 + _Schedule.turn() % 3)).exp().tanh()

    return function


class _Schedule:
    turns = 0

    @classmethod
    def turn(cls) -> int:
        cls.turns += 1
        return cls.turns


def counts_by_a_name_that_is_computed() -> Callable[..., torch.Tensor]:
    _settings.numbers = functools.partial(next, itertools.count())  # type: ignore[attr-defined]

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        count = getattr(_settings, "num" + "bers")
        return (block.linear(value) * (1 + count() % 3)).exp().tanh()

    return function


def reads_a_file() -> Callable[..., torch.Tensor]:
    file = io.BytesIO(bytes(range(100)))
    return lambda block, value: (block.linear(value) * (1 + file.read(1)[0] % 3)).exp().tanh()


EFFECTS = [
    appends_to_a_global_list,
    averages_in_a_global_dict,
    counts_in_a_global_variable,
    counts_in_a_closure,
    counts_in_another_file,
    draws_from_a_generator_of_torch,
    draws_from_one_of_python,
    draws_from_one_of_numpy,
    counts_in_an_array_of_numpy,
    counts_in_a_default,
    counts_in_a_class,
    counts_in_a_context,
    counts_in_a_dictionary_of_a_context,
    counts_in_a_partial_function,
    counts_in_another_module,
]
UNSEEN = [
    counts_with_an_iterator,
    counts_in_an_array,
    counts_by_a_name_that_is_computed,
    reads_a_file,
]


@pytest.mark.parametrize("effect", EFFECTS + UNSEEN, ids=lambda effect: effect.__name__)
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

    alone = "it changes variables outside of its modules"
    if effect in UNSEEN:
        alone = "it uses an object that changes unseen, such as an iterator or a file"
    check("recompute", build, step, alone=alone)


@pytest.fixture
def no_profiler() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(None)
    yield
    sys.setprofile(before)


@pytest.mark.usefixtures("no_profiler")
def test_a_block_that_prints_runs_once() -> None:
    def function() -> None:
        print("a word")

    in_function, itself = OutsideVariables(), OutsideVariables()
    with in_function.watched():
        function()
    with itself.watched():
        print("a word")
    assert in_function.reason() == itself.reason() == "it prints"


@pytest.mark.usefixtures("no_profiler")
def test_what_modules_do_when_they_are_imported_is_done_once_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = "count = 0\ndef register():\n    global count\n    count += 1\n"
    (tmp_path / "counts_registered.py").write_text(counts, encoding="utf-8")
    registers = "from counts_registered import register\nregister()\n"
    (tmp_path / "registers.py").write_text(registers, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    outside, after = OutsideVariables(), OutsideVariables()
    with outside.watched(), contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module("registers")
        importlib.import_module("a_module_that_is_missing")
    assert outside.reason() is None
    with after.watched():
        module.register()
    assert after.reason() == "it changes variables outside of its modules"


@pytest.mark.usefixtures("no_profiler")
@pytest.mark.parametrize("in_block", [False, True])
def test_a_profiler_of_the_script_stays(in_block: bool) -> None:
    def profiler(*_: object) -> None: ...

    outside = OutsideVariables()
    if not in_block:
        sys.setprofile(profiler)
    with outside.watched():
        sys.setprofile(profiler)
    assert sys.getprofile() is profiler
    assert outside.reason() == "a profiler watches it"


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
