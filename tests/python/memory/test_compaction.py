"""Parameters in nearly empty chunks are moved together, in one process without a daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime

BLOCKS = 8
WIDTH = 256  # A norm's weight has 1 KiB, a quarter of a chunk.


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH, bias=False)
        self.wide = torch.nn.Linear(WIDTH, 31, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.pad(self.wide(self.norm(x)), (0, WIDTH - 31))


def without_wide_weights(model: torch.nn.Sequential) -> None:
    for block in model:
        block.wide = torch.nn.Identity()
        block.forward = lambda x, norm=block.norm: x + norm(x)  # type: ignore[method-assign]


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = (model(torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def parameter_chunks(runtime: Runtime) -> int:
    return runtime.memory.arenas.of(Kind.PARAMETER).chunks


def test_what_replaced_weights_leave_is_moved_together_at_a_first_step(runtime: Runtime) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    assert parameter_chunks(runtime) >= BLOCKS * 8
    without_wide_weights(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step(model, optimizer)
    assert parameter_chunks(runtime) == BLOCKS // 4
    assert all(map(torch.equal, model.parameters(), before))
    assert all(runtime.memory.addresses.manages(parameter) for parameter in model.parameters())


def test_what_weights_leave_that_are_replaced_later_is_moved_at_the_next_step(
    runtime: Runtime,
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    optimizer = torch.optim.SGD([block.norm.weight for block in model], lr=0.1, momentum=0.9)
    step(model, optimizer)
    without_wide_weights(model)
    runtime.memory.pressure.trim_all()
    assert parameter_chunks(runtime) > BLOCKS // 4
    step(model, optimizer)
    assert parameter_chunks(runtime) == BLOCKS // 4


def test_nothing_is_moved_while_another_thread_may_use_it(runtime: Runtime) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    without_wide_weights(model)
    has_run, ends = threading.Event(), threading.Event()

    def evaluate() -> None:
        model(torch.ones(2, WIDTH))
        has_run.set()
        ends.wait()

    other = threading.Thread(target=evaluate)
    other.start()
    has_run.wait()
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    try:
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    finally:
        ends.set()
        other.join()
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert parameter_chunks(runtime) == BLOCKS // 4


def test_a_tensor_that_shares_its_memory_stays(runtime: Runtime) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    without_wide_weights(model)
    views = [block.norm.weight.detach() for block in model]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert all(torch.equal(view, b.norm.weight) for view, b in zip(views, model, strict=True))
    assert [v.data_ptr() for v in views] == [block.norm.weight.data_ptr() for block in model]
