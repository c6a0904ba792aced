"""Blocks of scripts, trained for one step plain and recomputed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from memtide._activations.recompute import Mode, Recompute
from torch import nn
from torch.nn import functional

_WIDTH = 16
_hooks = torch._C._autograd


class Counting(nn.Module):
    """Counts its calls, deeper in an object than memtide looks for variables of a script."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = SimpleNamespace(deep=SimpleNamespace(calls=0))

    @property
    def calls(self) -> int:
        return int(self._noted.deep.calls)

    def count_call(self) -> None:
        self._noted.deep.calls += 1


class Block(Counting):
    """As in a transformer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.attention = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.wide = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.count_call()
        parts = self.attention(self.norm(value)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind())
        value = value + functional.dropout(mixed.transpose(1, 2).flatten(2), 0.2, self.training)
        return value + functional.dropout(
            self.narrow(functional.gelu(self.wide(value))), 0.2, self.training
        )


class Lambda(Counting):
    """A block of any function of itself and its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.count_call()
        return self.function(self, *args, **kwargs)


def blocks(function: Callable[..., Any] | None = None) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block() if function is None else Lambda(function) for _ in range(3))


def chain(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
    for block in model:
        value = block(value)
    return value.square().mean()


Step = Callable[[nn.ModuleList, torch.Tensor], torch.Tensor]


def backward(model: nn.ModuleList, value: torch.Tensor) -> torch.Tensor:
    loss = chain(model, value)
    loss.backward()
    return loss


def outcome(model: nn.ModuleList, value: torch.Tensor, step: Step) -> list[torch.Tensor]:
    """The loss, and all gradients and buffers."""
    torch.manual_seed(2)
    loss = step(model, value.clone())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    return [loss.detach(), *gradients, *model.buffers(), torch.get_rng_state()]


def same(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> bool:
    return len(ours) == len(plain) and all(map(torch.equal, ours, plain))


def check(
    recompute: Recompute,
    mode: Mode,
    value: torch.Tensor,
    step: Step = backward,
    function: Callable[..., Any] | None = None,
    recomputed: bool = True,
) -> None:
    """Trains one step plain and one recomputed, and compares."""
    model = blocks(function)
    plain = copy.deepcopy(model)
    expected = outcome(plain, value, step)
    recompute.plan(dict.fromkeys(model, mode))
    assert same(outcome(model, value, step), expected)
    assert (model[1].calls > plain[1].calls) == recomputed


def _move(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_leaf else tensor.detach().clone()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


_move.__module__ = "memtide.tests"  # Only hooks of memtide's own are recomputed under.


@contextlib.contextmanager
def moved() -> Iterator[None]:
    """Under saved-tensor hooks that copy, as memtide's do."""
    _hooks._push_saved_tensors_default_hooks(_move, _same)
    try:
        yield
    finally:
        _hooks._pop_saved_tensors_default_hooks()
