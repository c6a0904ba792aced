"""A script sets variables that a block reads, and hooks on its tensors, before backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chosen_activations import STEPS, check
from memtide._activations.marks import Marks
from memtide._activations.read_state import Reads, ReadState
from torch import nn
from torch.nn import functional

_WIDTH = 32
_IN_PLACE = "a variable that it reads is changed in place before backward"
_table = torch.ones(_WIDTH)
_settings = SimpleNamespace(gain=1.0)


class Block(nn.Module):
    """A block of any function of itself and its input."""

    factor = 1.0

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.adapters = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.function = function
        self.gain, self.adapter = 1.0, 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.function(self, value)


def plain(block: Block, value: torch.Tensor) -> torch.Tensor:
    return block.linear(value).exp().tanh()


def of_blocks(function: Callable[..., torch.Tensor]) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleList(Block(function) for _ in range(3))


def loss_of(model: nn.Module) -> torch.Tensor:
    value = torch.randn(_WIDTH, _WIDTH)
    for block in model.children():
        value = block(value)
    return value.square().mean()


def stepping(before_backward: Callable[[Any], None]) -> Callable[[nn.Module], torch.Tensor]:
    def step(model: nn.Module) -> torch.Tensor:
        model.train()
        loss = loss_of(model)
        for block in model.children():
            before_backward(block)
        loss.backward()
        return loss

    return step


def test_an_attribute_that_is_set_before_backward_is_that_of_the_forward_pass() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * block.gain).exp().tanh()

    def set_gain(block: Block) -> None:
        block.gain += 0.1

    check("recompute", of_blocks(function), stepping(set_gain))


def test_each_of_two_forward_passes_has_its_adapter() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return block.adapters[block.adapter](block.linear(value).tanh()).exp().tanh()

    def step(model: nn.Module) -> torch.Tensor:
        loss = torch.zeros(())
        for adapter in range(2):
            for block in model.children():
                block.adapter = adapter
            loss = loss + loss_of(model)
        loss.backward()
        return loss

    check("recompute", of_blocks(function), step)


def test_dropout_that_was_in_training_stays_so_until_backward() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(block.linear(value).exp(), 0.3, block.training).tanh()

    check("recompute", of_blocks(function), stepping(lambda block: block.eval()))


def test_a_global_that_is_set_before_backward_is_that_of_the_forward_pass() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * _table).exp().tanh()

    def build() -> nn.Module:
        global _table
        _table = torch.ones(_WIDTH)
        return of_blocks(function)()

    def set_table(_block: Block) -> None:
        global _table
        _table = _table * 1.1

    check("recompute", build, stepping(set_table))


def test_a_block_whose_variables_change_in_place_is_not_recomputed() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * _settings.gain).exp().tanh()

    def build() -> nn.Module:
        _settings.gain = 1.0
        return of_blocks(function)()

    def set_gain(_block: Block) -> None:
        _settings.gain += 0.1

    check("recompute", build, stepping(set_gain), alone=_IN_PLACE)


def test_a_block_whose_weights_are_written_without_a_version_is_not_recomputed() -> None:
    def scale(block: Block) -> None:
        block.linear.weight.data.mul_(0.9)

    check("recompute", of_blocks(plain), stepping(scale), alone=_IN_PLACE)


def test_a_change_in_place_that_no_rehearsal_has_seen_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [0]

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * _settings.gain).exp().tanh()

    def step(model: nn.Module) -> torch.Tensor:
        steps[0] = steps[0] % STEPS + 1
        _settings.gain = 1.0
        loss = loss_of(model)
        if steps[0] == STEPS:
            _settings.gain = 2.0
        loss.backward()
        return loss.detach()

    with pytest.raises(AssertionError):  # Results differ, and a line says so.
        check("recompute", of_blocks(function), step)
    errors = capsys.readouterr().err
    assert errors.count("a variable that Block reads was changed in place") == 3
    assert "results may differ" in errors


def shrink(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.9)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_that_a_block_sets_on_its_parameters_are_set_once(register: str) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        weight = block.linear.weight
        if register == "register_hook":
            weight.register_hook(lambda gradient: gradient * 0.9)
        else:
            weight.register_post_accumulate_grad_hook(shrink)
        return plain(block, value)

    check("recompute", of_blocks(function), stepping(lambda block: None))


def test_a_hook_that_a_block_sets_on_its_input_is_called_once() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        if value.requires_grad:
            value.register_hook(lambda gradient: gradient * 0.5)
        return plain(block, value)

    check("recompute", of_blocks(function), stepping(lambda block: None))


def test_an_attribute_of_the_class_is_that_of_the_forward_pass() -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * block.factor).exp().tanh()

    def set_factor(block: Block) -> None:
        block.factor = 2.0

    check("recompute", of_blocks(function), stepping(set_factor))


def test_hooks_that_come_before_backward_are_of_no_recomputation() -> None:
    handles: list[Any] = []

    def set_hook(block: Block) -> None:
        hook = block.linear.register_forward_hook(lambda *_: torch.zeros(_WIDTH, _WIDTH))
        handles.append(hook)

    def step(model: nn.Module) -> torch.Tensor:
        while handles:
            handles.pop().remove()
        return stepping(set_hook)(model)

    check("recompute", of_blocks(plain), step)


def test_what_the_block_does_not_read_is_no_reason() -> None:
    """A model's own loop notes norms of its blocks."""

    def note(block: Block) -> None:
        block.statistics = getattr(block, "statistics", {})
        block.statistics[len(block.statistics)] = 0.0

    check("recompute", of_blocks(plain), stepping(note))


@pytest.mark.parametrize("write", [lambda t: t.mul_(0.9), lambda t: t.copy_(t.flip(0))])
@pytest.mark.parametrize("name", ["table", "mask"])
def test_buffers_and_tensors_that_are_written_without_a_version_are_a_reason(
    name: str, write: Callable[[torch.Tensor], Any]
) -> None:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (block.linear(value) * block.table + block.mask).exp().tanh()

    def build() -> nn.Module:
        model = of_blocks(function)()
        for block in model.children():
            block.table = torch.linspace(0.1, 1, _WIDTH)
            block.register_buffer("mask", torch.linspace(1, 2, _WIDTH))
        return model

    scale = stepping(lambda block: write(getattr(block, name).data))
    check("recompute", build, scale, alone=_IN_PLACE)


def test_a_block_with_a_scripted_module_is_not_recomputed() -> None:
    def build() -> nn.Module:
        model = of_blocks(lambda block, value: block.scripted(block.linear(value)).exp())()
        for block in model.children():
            block.scripted = torch.jit.script(nn.Linear(_WIDTH, _WIDTH))
        return model

    alone = "it has scripted modules, which compute otherwise after their first runs"
    check("recompute", build, stepping(lambda block: None), alone=alone)


def test_a_global_that_is_named_like_an_attribute_is_not_kept() -> None:
    """A training loop keeps its last output in a global, and blocks have an attribute of its
    name."""
    scope: dict[str, Any] = {"torch": torch}
    code = "def function(block, value):\n    return block.linear(value * block.out).exp().tanh()\n"
    exec(code, scope)
    alive: list[weakref.ref[torch.Tensor]] = []

    def build() -> nn.Module:
        model = of_blocks(scope["function"])()
        for block in model.children():
            block.out = 0.5
        return model

    def step(model: nn.Module) -> torch.Tensor:
        loss = loss_of(model)
        scope["out"] = loss.exp()
        alive.append(weakref.ref(scope["out"]))
        loss.backward()
        assert sum(each() is not None for each in alive) == 1
        return loss.detach()

    check("recompute", build, step)


def test_the_marks_of_a_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists have two million items, and the other one has no end."""
    looks = 0

    def counted(self: Marks, value: object, depth: int = 2) -> object:
        nonlocal looks
        looks += 1
        return of(self, value, depth)

    of = Marks.of
    monkeypatch.setattr(Marks, "of", counted)
    block = Block(plain)
    block.lists, block.around = [[0] * 1000 for _ in range(2000)], []
    block.around.append(block.around)
    ReadState(iter([block]), Reads(frozenset(("lists", "around"))))
    assert looks < 2000
