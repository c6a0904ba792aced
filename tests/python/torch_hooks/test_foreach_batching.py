"""List optimizers step groups of parameters that fit, and give the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.around_step import foreach_batching
from torch import nn

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "lr": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "nadam": (torch.optim.NAdam, {}),
    "fused adamw": (torch.optim.AdamW, {"foreach": False, "fused": True}),
}


def train(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(12)))
    optimizer = kind(model.parameters(), **{"foreach": True, **options})
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 24)).pow(2).sum().backward()
        optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values()]
    tensors = [*model.parameters(), *(v for v in states if isinstance(v, torch.Tensor))]
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("handles_faults", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits(name: str, handles_faults: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, options = OPTIMIZERS[name]
    plain = train(kind, options)
    sizes: list[int] = []
    real = foreach_batching._spans

    def spans(*arguments: Any) -> Any:
        for start, end in real(*arguments):
            sizes.append(end - start)
            yield start, end

    monkeypatch.setattr(foreach_batching, "_spans", spans)
    client = FakeClient(lease_budget=9, handles_faults=handles_faults)
    runtimes.start(client, Observer(), adopt_everything=True).offloaded.allowed = False
    try:
        offloaded = train(kind, options)
    finally:
        runtimes.stop()
    assert len(plain) == len(offloaded)
    for one, other in zip(plain, offloaded, strict=True):
        assert torch.equal(one, other)
    assert len(sizes) > 8  # More than one group in each step.
    # On a GPU, groups that fit are divided again.
    assert sum(sizes) == 4 * 24 * (1 if handles_faults else 2)


def test_what_fits_goes_in_one_call() -> None:
    seen: list[int] = []

    def update(params: list[torch.Tensor], *, scale: float) -> None:
        seen.append(len(params))

    runtime = runtimes.start(
        FakeClient(lease_budget=8, handles_faults=False), Observer(), adopt_everything=True
    )
    try:
        layer = nn.Linear(16, 16)
        wrapped = foreach_batching.in_groups(runtime.memory, runtime.observer, update)
        wrapped([layer.weight, layer.bias], scale=2.0)
        wrapped([], scale=2.0)
    finally:
        runtimes.stop()
    assert seen == [2]
