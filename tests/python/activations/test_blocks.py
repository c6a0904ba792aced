"""Repeated blocks are found from the calls of one iteration."""

from __future__ import annotations

import contextlib

import torch
from memtide._activations.blocks import Block, BlockFinder
from torch import nn
from torch.nn.modules import module as torch_modules


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            value = part(value)
        return value


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.linear(value).relu()


def found(*models: nn.Module, repeats: int = 1) -> list[Block]:
    finder = BlockFinder()
    finder.open()
    for _ in range(repeats):
        value = torch.ones(2, 4)
        for model in models:
            value = model(value)
        value.sum().backward()
        with torch.no_grad():
            models[0](torch.ones(1, 4))
    blocks = finder.close()
    assert not torch_modules._global_forward_hooks and not torch_modules._global_forward_pre_hooks
    return blocks


def test_the_outermost_of_a_row_are_the_blocks() -> None:
    layers = [Layer() for _ in range(4)]
    blocks = found(nn.Sequential(nn.Linear(4, 4), *layers))
    assert [block.module for block in blocks] == layers
    assert {(block.calls, block.input_bytes) for block in blocks} == {(1, 32)}
    assert all(block.forward_s > 0 for block in blocks)


def test_two_are_no_row_but_what_is_in_them_may_be() -> None:
    layers = [Layer(), Layer()]
    blocks = found(nn.Sequential(*layers))
    assert [block.module for block in blocks] == [p for layer in layers for p in layer.parts]


def test_each_micro_batch_is_a_forward_pass() -> None:
    assert [block.calls for block in found(nn.Sequential(*map(make, "abc")), repeats=2)] == [2] * 3


def test_blocks_that_no_module_calls_are_found() -> None:
    parts = [make(name) for name in "abcd"]
    assert [(b.module, b.calls) for b in found(*parts, repeats=2)] == [(p, 2) for p in parts]


def test_a_shared_module_is_no_block() -> None:
    shared = Part()
    parts = [Part(), Part(), Part()]
    blocks = found(nn.Sequential(shared, *parts, shared))
    assert [block.module for block in blocks] == parts


def test_shared_modules_do_not_make_a_row() -> None:
    shared = Part()
    assert found(nn.Sequential(shared, Part(), Part(), shared)) == []


def test_a_module_that_one_pass_calls_twice_is_no_block() -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.passes = nn.ModuleList(Part() for _ in range(4)), 0

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            for part in [*self.parts, *([self.parts[0]] if self.passes > 1 else [])]:
                value = part(value)
            return value

    model = Uneven()
    assert [block.module for block in found(model, repeats=2)] == list(model.parts)[1:]


def test_a_forward_pass_that_raises_is_over() -> None:
    model = nn.Sequential(*(Part() for _ in range(3)))
    finder = BlockFinder()
    finder.open()
    with contextlib.suppress(RuntimeError):
        model(torch.ones(2, 5))
    model(torch.ones(2, 4))
    assert [block.module for block in finder.close()] == list(model)


def test_torch_s_own_modules_without_children_are_no_blocks() -> None:
    assert found(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))) == []


def test_sequentials_are_of_one_kind_if_their_parts_are() -> None:
    alike = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    other = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU())]
    assert [block.module for block in found(nn.Sequential(*alike, *other))] == alike


def test_an_error_in_a_module_leaves_the_calls_in_order() -> None:
    class Broken(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            raise KeyError("broken")

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broken, self.parts = Broken(), nn.ModuleList(Part() for _ in range(3))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(KeyError):
                self.broken(value)
            for part in self.parts:
                value = part(value)
            return value

    model = Careful()
    assert [block.module for block in found(model)] == list(model.parts)


def make(_name: str) -> Part:
    return Part()
