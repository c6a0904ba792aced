"""Blocks that run again in backward, or must not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from activation_runs import BLOCKS
from memtide._activations import effects, recompute, rehearsal
from memtide._activations.effects import State
from memtide._activations.outside import OutsideVariables
from memtide._activations.read_state import ReadState
from memtide._activations.recompute import _Call
from museum import WIDTH, Case, Results, adamw, batch, train, values
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

Forward = Callable[["Block", torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A layer of any function, as of a transformer."""

    def __init__(self, function: Forward, norm: nn.Module) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = norm
        self.function = function

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.function(self, value)


def plain_block(block: Block, value: torch.Tensor) -> torch.Tensor:
    return block.narrow(block.norm(block.wide(value)).sigmoid()).tanh()


def trained(
    function: Forward = plain_block,
    norm: Callable[[], nn.Module] = nn.Identity,
    chain: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda model, value: model(value),
) -> Results:
    torch.manual_seed(0)
    blocks = [Block(function, norm()) for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, WIDTH))
    optimizer = adamw(model)
    return [
        *train(optimizer, lambda _: chain(model, batch()).square().mean()),
        *values(model, optimizer),
    ]


def batch_normalization() -> Results:
    return trained(norm=partial(nn.BatchNorm1d, 2 * WIDTH))


def statistics_updated_again(patch: pytest.MonkeyPatch) -> None:
    """Three guards see it: the class, its buffers in the rehearsal, and their versions later."""
    patch.setattr(effects, "reason_against", lambda _: None)
    patch.setattr(State, "change_to", lambda *_: None)
    patch.setattr(recompute, "_versions_of", lambda _: [])


def dropout() -> Results:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return value + functional.dropout(plain_block(block, value), 0.3)

    return trained(function)


def random_numbers_drawn_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompute, "checkpoint", partial(recompute.checkpoint, preserve_rng_state=False))


def autocast() -> Results:
    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return plain_block(block, value.float())

    def chain(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result = model(value)
        return result.float()

    return trained(function, chain=chain)


def autocast_off_in_backward(patch: pytest.MonkeyPatch) -> None:
    again = _Call._again

    def without_autocast(call: _Call, tensors: tuple[torch.Tensor, ...]) -> Any:
        with torch.autocast("cpu", enabled=False):
            return again(call, tensors)

    patch.setattr(_Call, "_again", without_autocast)


def hooks_of_the_script_on_saved_tensors() -> Results:
    """The script counts what autograd saves in its blocks."""
    numbers: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        numbers.append(tensor.numel())
        return tensor.detach()

    def chain(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
        value = model[0](value).sin()
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            value = model[1:-1](value)
        return model[-1](value)

    return [*trained(chain=chain), torch.tensor(numbers)]


def foreign_hooks_for_ours(patch: pytest.MonkeyPatch) -> None:
    """The list in the closure of the script's hook is a second guard."""
    patch.setattr(recompute, "is_memtide_s", lambda _: True)
    variables_not_looked_at(patch)


def an_input_changed_behind_its_block() -> Results:
    """A stream to which blocks add in place: each has saved the result of a function of it."""

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return plain_block(block, value.relu())

    def chain(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
        stream = model[0](value)
        for block in model[1:-1]:
            stream += block(stream)
        return model[-1](stream)

    return trained(function, chain=chain)


def inputs_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rehearsal, "_before_backward", lambda *_: None)


def a_scale_for_each_pass() -> Results:
    """Two forward passes with a scale each, which is an attribute of the blocks, as that of an
    adapter is, and then one backward pass."""

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        return (plain_block(block, value) * block.norm.scale).sin()

    def chain(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
        results = []
        for scale in (1.0, 1.5):
            for block in model[1:-1]:
                block.norm.scale = scale
            results.append(model(value))
        return results[0] + 2 * results[1]

    return trained(function, chain=chain)


def variables_of_backward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadState, "restored", lambda _: contextlib.nullcontext(True))


def a_gradient_halved_at_the_door() -> Results:
    """Each block sets a hook on its input, which halves what goes back."""

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        value.register_hook(lambda gradient: gradient / 2)
        return plain_block(block, value)

    return trained(function)


def hooks_set_again(patch: pytest.MonkeyPatch) -> None:
    for module in (recompute, rehearsal):
        patch.setattr(module, "without_new_hooks", lambda _: contextlib.nullcontext())


def statistics_in_a_closure() -> Results:
    """Each block is shifted by a running mean that all of them update."""
    average = torch.zeros(WIDTH)

    def function(block: Block, value: torch.Tensor) -> torch.Tensor:
        nonlocal average
        average = 0.9 * average + 0.1 * value.detach().mean(0)
        return plain_block(block, value - average)

    return [*trained(function), average]


def variables_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutsideVariables, "reason", lambda _: None)


CASES = [
    Case(
        batch_normalization,
        statistics_updated_again,
        blocks=True,
        alone="it has batch normalization in training",
    ),
    Case(dropout, random_numbers_drawn_anew, blocks=True),
    Case(autocast, autocast_off_in_backward, "different metadata", blocks=True),
    Case(
        hooks_of_the_script_on_saved_tensors,
        foreign_hooks_for_ours,
        blocks=True,
        alone="it runs within a checkpoint or saved-tensor hooks of the script's own",
    ),
    Case(
        an_input_changed_behind_its_block,
        inputs_not_looked_at,
        "modified by an inplace operation",
        blocks=True,
        alone="its input is changed in place before backward",
    ),
    Case(a_scale_for_each_pass, variables_of_backward, blocks=True),
    Case(a_gradient_halved_at_the_door, hooks_set_again, blocks=True),
    Case(
        statistics_in_a_closure,
        variables_not_looked_at,
        blocks=True,
        alone="it changes variables outside of its modules",
    ),
]
