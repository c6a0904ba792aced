"""Models and optimizers for tests of offloaded steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memtide
import torch
from memtide._torch_hooks import runtime as runtimes
from torch import nn

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def decay_groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0, "lr": 0.01},
    ]


OPTIMIZERS: dict[str, Optimizers] = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "adamw amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "adamw groups": lambda m: torch.optim.AdamW(decay_groups(m), lr=0.01, maximize=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    "sgd nesterov": lambda m: torch.optim.SGD(
        decay_groups(m), lr=0.01, momentum=0.9, nesterov=True
    ),
    "sgd dampening": lambda m: torch.optim.SGD(
        m.parameters(), lr=0.01, momentum=0.9, dampening=0.1, maximize=True
    ),
    "adagrad": lambda m: torch.optim.Adagrad(
        decay_groups(m), lr_decay=0.1, initial_accumulator_value=0.1
    ),
    "adamw of ours": lambda m: memtide.AdamW(decay_groups(m), lr=0.01, maximize=True),
    "lion": lambda m: memtide.Lion(decay_groups(m), lr=0.01, betas=(0.9, 0.99), maximize=True),
    # A power of two, because torch rounds results with a tensor of this type to the type.
    "tensor lr": lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(2**-6), foreach=False),
}
# The other optimizers of torch.
MORE_OPTIMIZERS: dict[str, Optimizers] = {
    "rmsprop": lambda m: torch.optim.RMSprop(
        decay_groups(m), lr=0.01, momentum=0.9, centered=True, foreach=True
    ),
    "adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=0.01, maximize=True),
    "adadelta": lambda m: torch.optim.Adadelta(decay_groups(m)),
    "radam": lambda m: torch.optim.RAdam(m.parameters(), lr=0.01, decoupled_weight_decay=True),
    "rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.01),
    "nadam": lambda m: torch.optim.NAdam(decay_groups(m), lr=0.01),
    "nadam foreach": lambda m: torch.optim.NAdam(
        m.parameters(), lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, foreach=True
    ),
    # From the third step on the average is one, whose weight is a state.
    "asgd": lambda m: torch.optim.ASGD(decay_groups(m), lr=0.01, t0=2, lambd=0.1),
    "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True),
}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with tensors that cross chunks, that share one, and that are too small for one."""
    torch.manual_seed(0)
    sizes = [24, 60, 300, 24, 24, 24]
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*layers).to(dtype)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4, seed: int = 1
) -> None:
    torch.manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 24, dtype=dtype)).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [v for state in optimizer.state.values() for v in state.values()]
    tensors = [*model.parameters(), *(v for v in states if isinstance(v, torch.Tensor))]
    return [tensor.detach().clone() for tensor in tensors]


def trained_by(name: str) -> list[torch.Tensor]:
    """Parameters and states after four steps by one of OPTIMIZERS or MORE_OPTIMIZERS."""
    model = network()
    optimizer = {**OPTIMIZERS, **MORE_OPTIMIZERS}[name](model)
    train(model, optimizer)
    return everything(model, optimizer)


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


def plainly(work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """The result of `work` without a runtime."""
    assert runtimes.current() is None
    return work()
