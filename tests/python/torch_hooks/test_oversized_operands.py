"""Operands that are larger than all that can be leased: the bits of plain torch, over ordinary
memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import mode_stack
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.op_schema import only_views
from memtide._torch_hooks.oversized_operands import OversizedOperandsMode
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

BUDGET = 3  # Chunks of 4 KiB.


@pytest.fixture
def client() -> FakeClient:
    return FakeClient(lease_budget=BUDGET)


@pytest.fixture
def runtime(client: FakeClient) -> Iterator[Runtime]:
    yield runtimes.start(client, Observer(), adopt_everything=True)
    runtimes.stop()


class Operands(TorchDispatchMode):
    """Records which operations have operands of more chunks than can be leased, below all other
    modes."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._memory = runtime.memory
        self.oversized: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        most = max((len(self._memory.addresses.element_places(t)) for t in tensors), default=0)
        if most > BUDGET and not only_views(func):
            self.oversized.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Twice(nn.Module):
    """Uses its weight in two functions, and a slice of it in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = functional.linear(x, self.weight) @ self.weight.t()
        return whole + torch.einsum("bi,ij->bj", x[:, 1:], self.weight[1:])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "linear": (lambda: nn.Linear(100, 70), lambda: torch.randn(5, 100)),
    "three dimensions": (lambda: nn.Linear(100, 70), lambda: torch.randn(2, 3, 100)),
    "convolution": (lambda: nn.Conv2d(16, 32, 3), lambda: torch.randn(2, 16, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(48, 32, 4), lambda: torch.randn(2, 48, 9)),
    "functions": (Twice, lambda: torch.randn(5, 64)),
    "a stack": (
        lambda: nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 300)),
        lambda: torch.randn(4, 40),
    ),
}


def steps(make: Callable[[], nn.Module], data: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """The losses of three steps, and the parameters after them."""
    torch.manual_seed(7)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    results = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss.detach().clone())
    return results + [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_bits_of_plain_torch_and_no_oversized_operand(
    name: str, client: FakeClient
) -> None:
    make, data = MODELS[name]
    plain = steps(make, data)
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    watch = Operands(runtime)

    def watched() -> nn.Module:
        model = make()
        mode_stack.put_back(watch, 0)  # Below the mode that the model's parameters brought.
        return model

    try:
        ours = steps(watched, data)
    finally:
        mode_stack.take_off(watch)
        runtimes.stop()
    assert all(map(torch.equal, ours, plain))
    products = {"mm", "addmm", "bmm", "convolution", "convolution_backward"}
    assert not products & set(watch.oversized)
    assert watch.oversized  # The optimizer's operations use the weights where they are.


class Lookups(nn.Module):
    """Looks rows of one table up in four ways, in descending order and with repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 64, padding_idx=3)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        table = self.table.weight
        found = self.table(numbers) + table[numbers] + table[numbers - 64]
        rows = table.index_select(0, numbers.flatten()).view_as(found)
        return found + rows + table.t()[:, numbers.flatten()].t().reshape_as(found)


@pytest.mark.parametrize(
    "numbers",
    [
        torch.arange(20).view(4, 5).t(),
        torch.arange(5).view(5, 1).as_strided((5, 1), (1, 5)),
        torch.arange(20).view(4, 5),
        torch.arange(20)[::2],
    ],
)
def test_rows_lie_as_torch_lays_them(numbers: torch.Tensor, runtime: Runtime) -> None:
    table = nn.Embedding(64, 64).weight
    plain = table.detach().clone()
    assert runtime.memory.addresses.manages(table)
    for look_up in (lambda of: of[numbers], lambda of: functional.embedding(numbers, of)):
        ours, expected = look_up(table), look_up(plain)
        assert torch.equal(ours, expected)
        assert ours.stride() == expected.stride()


def test_a_wrong_number_is_named_as_by_torch(runtime: Runtime) -> None:
    table = nn.Embedding(64, 64).weight
    with pytest.raises(IndexError, match="index 90 "):
        table[torch.tensor([5, 90, 70])]


def test_rows_of_an_oversized_table_are_looked_up_in_order(client: FakeClient) -> None:
    def numbers() -> torch.Tensor:
        return torch.cat((torch.randint(64, (2, 20)), torch.arange(63, 23, -1).view(2, 20)))

    plain = steps(Lookups, numbers)
    runtime = runtimes.start(client, Observer(), adopt_everything=True)
    seen: list[torch.Tensor] = []

    class Numbers(Operands):
        __module__ = "memtide.tests"  # A script's mode sees nothing of a lookup in order.

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.embedding.default:
                seen.append(args[1])
            return func(*args, **(kwargs or {}))

    watch = Numbers(runtime)

    def watched() -> nn.Module:
        model = Lookups()
        mode_stack.put_back(watch, 0)
        return model

    try:
        ours = steps(watched, numbers)
    finally:
        mode_stack.take_off(watch)
        runtimes.stop()
    assert all(map(torch.equal, ours, plain))
    assert len(seen) == 3
    assert all(torch.equal(each, each.sort().values) for each in seen)


def test_the_graph_keeps_no_copy(runtime: Runtime) -> None:
    model = nn.Linear(100, 70)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(torch.randn(5, 100, requires_grad=True))
    assert [runtime.memory.addresses.manages(t) for t in saved if t.numel() == 7000] == [True]


def test_a_copy_leases_no_more_than_there_is_room_for(client: FakeClient, runtime: Runtime) -> None:
    weight = nn.Linear(100, 70).weight
    client.acquired.clear()
    torch.randn(5, 100) @ weight.t()
    leased = [places for places, _ in client.acquired]
    assert sorted(place for places in leased for place in places) == list(
        runtime.memory.addresses.element_places(weight)
    )
    assert not client.in_use()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The operands that are copied."""
    operands: list[torch.Tensor] = []
    original = OversizedOperandsMode._copy_of

    def copy_of(mode: OversizedOperandsMode, operand: torch.Tensor) -> torch.Tensor:
        operands.append(operand)
        return original(mode, operand)

    monkeypatch.setattr(OversizedOperandsMode, "_copy_of", copy_of)
    return operands


def test_what_can_be_leased_is_not_copied_and_costs_no_mode(
    runtime: Runtime, copied: list[torch.Tensor]
) -> None:
    steps(lambda: nn.Linear(50, 50), lambda: torch.randn(5, 50))  # Three chunks.
    assert mode_stack._length() == 0
    oversized = nn.Linear(100, 70)
    assert isinstance(mode_stack._at(0), OversizedOperandsMode)
    fitting = nn.Linear(50, 50)
    fitting(torch.randn(5, 50)).sum().backward()
    assert not copied
    oversized(torch.randn(5, 100)).sum().backward()
    assert len(copied) == 1  # Backward needs the weight only for the gradient of the input.


def test_embeddings_read_their_rows_in_place(runtime: Runtime, copied: list[torch.Tensor]) -> None:
    table = nn.Embedding(200, 32)
    table(torch.tensor([3, 5])).sum().backward()
    assert isinstance(mode_stack._at(0), OversizedOperandsMode)
    assert not copied


def test_the_mode_ends_once_the_lease_budget_has_grown(
    client: FakeClient, runtime: Runtime
) -> None:
    model = nn.Linear(100, 70)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert mode_stack._length() == 1
    client.resize(100 * 4096)
    model(torch.randn(5, 100)).sum().backward()
    optimizer.step()
    assert mode_stack._length() == 0
    client.resize(3 * 4096)
    model(torch.randn(5, 100)).sum().backward()
    optimizer.step()
    assert mode_stack._length() == 1


def test_nothing_is_left_on_the_stack_of_modes(client: FakeClient) -> None:
    runtimes.start(client, Observer(), adopt_everything=True)
    nn.Linear(100, 70)
    assert mode_stack._length() == 1
    runtimes.stop()
    assert mode_stack._length() == 0
