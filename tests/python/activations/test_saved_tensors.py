"""Activations under memtide are moved to chunks at once, with an allowance of nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from activation_runs import managed
from fake_client import FakeClient
from memtide._capi.client import Kind
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

allowed_bytes = 0


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    global allowed_bytes
    allowed_bytes = 0
    client = FakeClient(lease_budget=64)
    yield runtimes.start(
        client, Observer(), adopt_everything=False, allowance=lambda: allowed_bytes
    )
    runtimes.stop()


def activations(runtime: Runtime) -> int:
    """Activation chunks with something live: the second of two iterations needs no others."""
    runtime.memory.pressure.end_activations()
    runtime.memory.pressure.end_activations()
    return sum(kind is Kind.ACTIVATION for kind in runtime.client.kinds.values())


def outside(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """The tensors that `run` returns in a thread without hooks: plain torch's result."""
    results: list[list[Tensor]] = []
    runtime = runtimes.current()
    assert runtime is not None and runtime.activations is not None
    hooks = runtime.activations.hooks
    assert hooks.unset()
    try:
        results.append(run())
    finally:
        hooks.set()
    return results[0]


def check_same(runtime: Runtime, run: Callable[[], list[Tensor]]) -> None:
    """Asserts the same bits as plain torch's, and that something was moved for them."""
    torch.manual_seed(1)
    expected = outside(run)
    before = runtime.activations.moved_bytes
    torch.manual_seed(1)
    actual = run()
    assert runtime.activations.moved_bytes > before
    assert len(actual) == len(expected)
    for ours, plain in zip(actual, expected, strict=True):
        assert torch.equal(ours, plain)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_the_budget_is_asked_again_when_4_mib_more_are_kept() -> None:
    allowances: list[int] = []

    def allowance() -> int:
        allowances.append(1 << 40)
        return allowances[-1]

    with managed(allowance):
        allowances.clear()
        value = torch.ones(2**18, requires_grad=True)  # It has 1 MiB, as each result that is saved.
        for _ in range(16):
            value = value.exp()
        assert len(allowances) == 4


def test_moved_activations_give_the_same_bits(runtime: Runtime) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(256), nn.Linear(256, 64)
    )
    x = torch.randn(32, 64)
    check_same(runtime, lambda: gradients(model, model(x).square().mean()))
    assert activations(runtime) == 0


def test_views_of_one_storage_are_told_apart(runtime: Runtime) -> None:
    # A square matrix and its transpose have one address and one shape.
    model = nn.Linear(32, 96)
    x = torch.randn(32, 32)

    def run() -> list[Tensor]:
        q, k, v = model(x).chunk(3, dim=1)
        h = (q @ k.t()).softmax(1) @ v
        return gradients(model, (h @ h.t() * h.t().mm(h)).sum())

    check_same(runtime, run)


def test_second_derivatives_are_the_same(runtime: Runtime) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    x = torch.randn(32, 32)

    def run() -> list[Tensor]:
        weights = list(model.parameters())
        first = torch.autograd.grad(model(x).square().sum(), weights, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), weights))

    check_same(runtime, run)


def test_backward_can_run_twice(runtime: Runtime) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    x = torch.randn(32, 32)

    def run() -> list[Tensor]:
        loss = model(x).exp().sum()
        weights = list(model.parameters())
        first = torch.autograd.grad(loss, weights, retain_graph=True)
        return [*first, *torch.autograd.grad(loss, weights)]

    check_same(runtime, run)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_the_script_is_left_alone(runtime: Runtime, reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.GELU(), nn.Linear(64, 64))
    x = torch.randn(32, 64)

    def run() -> list[Tensor]:
        h = model[0](x)
        h = checkpoint(model[1:], h, use_reentrant=reentrant)
        model.zero_grad()
        h.square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    check_same(runtime, run)


def test_the_scripts_own_hooks_come_first(runtime: Runtime) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    x = torch.randn(32, 64)
    packed: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.numel())
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        before = runtime.activations.moved_bytes
        gradients(model, model(x).square().sum())
        assert runtime.activations.moved_bytes == before
    assert packed


def _change_the_result(x: Tensor) -> Tensor:
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z + y


def _change_an_input(x: Tensor) -> Tensor:
    h = x * 1
    y = h.sin() @ h
    h.mul_(2)
    return y


def _change_a_leaf(x: Tensor) -> Tensor:
    y = x * x
    with torch.no_grad():
        x.add_(1)
    return y


@pytest.mark.parametrize("change", [_change_the_result, _change_an_input, _change_a_leaf])
@pytest.mark.parametrize("allowed", [0, 1 << 30], ids=["moved", "kept"])
def test_a_change_in_place_is_noticed_with_torchs_own_error(
    runtime: Runtime, change: Callable[[Tensor], Tensor], allowed: int
) -> None:
    global allowed_bytes
    allowed_bytes = allowed
    runtime.activations.end_iteration()

    def run() -> list[Tensor]:
        x = torch.full((64, 64), 0.5, requires_grad=True)
        result = change(x)
        filler = torch.ones(64, 64, requires_grad=True) * 2
        with pytest.raises(RuntimeError) as raised:
            (result.sum() + (filler * filler).sum()).backward()
        messages.append(str(raised.value))
        return []

    messages: list[str] = []
    outside(run)
    run()
    assert messages[0] == messages[1]
    assert "modified by an inplace operation" in messages[0]


def test_function_transforms_run_without_hooks_and_these_come_back(runtime: Runtime) -> None:
    def run() -> list[Tensor]:
        x = torch.linspace(0, 1, 512)
        gradient = torch.func.grad(lambda t: t.exp().sum())(x)
        value, pull = torch.func.vjp(torch.sin, x)
        (pulled,) = pull(torch.ones(512))
        hessian = torch.func.hessian(lambda t: t.pow(3).sum())(x[:4])
        leaf = x.clone().requires_grad_()
        (after,) = torch.autograd.grad(leaf.exp().tanh().exp().tanh().sum(), leaf)
        return [gradient, value, pulled, hessian, after]

    hooks = runtime.activations.hooks
    check_same(runtime, run)
    assert hooks.are_set


def test_threads_of_the_script_have_the_hooks(runtime: Runtime) -> None:
    before = runtime.activations.moved_bytes
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    thread = threading.Thread(
        target=lambda: gradients(model, model(torch.randn(64, 64)).square().sum())
    )
    thread.start()
    thread.join()
    assert runtime.activations.moved_bytes > before


def test_a_node_that_saves_its_result_is_freed(runtime: Runtime) -> None:
    collecting = gc.isenabled()
    gc.disable()
    try:
        for allowed in (0, 1 << 30):
            global allowed_bytes
            allowed_bytes = allowed
            runtime.activations.end_iteration()
            x = torch.ones(64, 64, requires_grad=True)
            result = x.exp().exp().tanh()
            del result
            assert runtime.activations.kept_bytes == 0
            assert activations(runtime) == 0
    finally:
        if collecting:
            gc.enable()


def test_what_the_script_uses_itself_stays(runtime: Runtime) -> None:
    x = torch.ones(64, 64, requires_grad=True)
    held = x * 2
    y = held.exp()
    z = (y * y).sum()
    assert not runtime.memory.addresses.manages(held)
    kept_bytes = runtime.activations.kept_bytes
    assert kept_bytes >= held.nbytes
    del held
    z = z + (x * 3).exp().sum()  # Something is saved: what could not move before is tried again.
    z.backward()
    assert x.grad is not None


def test_what_was_saved_first_leaves_first(runtime: Runtime) -> None:
    global allowed_bytes
    allowed_bytes = 3 * 64 * 64 * 4
    runtime.activations.end_iteration()
    h = torch.ones(64, 64, requires_grad=True) * 1
    sizes_bytes = []
    for _ in range(6):
        h = h.sin()
        sizes_bytes.append(runtime.activations.kept_bytes)
    assert max(sizes_bytes) <= allowed_bytes + 64 * 64 * 4
    newest = h.grad_fn
    oldest = newest
    while oldest.next_functions[0][0].name() == "SinBackward0":
        oldest = oldest.next_functions[0][0]
    assert runtime.memory.addresses.manages(oldest._saved_self)
    assert not runtime.memory.addresses.manages(newest._saved_self)


def test_tensors_in_chunks_are_saved_as_references(runtime: Runtime) -> None:
    layer = nn.Linear(64, 64, bias=False)
    for parameter in layer.parameters():
        runtime.managed.name(parameter)
        runtime.module_hooks.adopt_parameter(parameter)
    x = torch.ones(64, 64, requires_grad=True)
    y = layer(x).sum()
    assert runtime.activations.kept_bytes == 0  # Neither the weight nor the script's own leaf.
    assert runtime.activations.moved_bytes == 0
    y.backward()
    assert x.grad is not None


def test_nothing_is_leaked_by_iterations_of_changing_shapes(runtime: Runtime) -> None:
    layer = nn.Linear(16, 16)
    for iteration in range(300):
        rows = 16 + iteration * 7 % 61
        h = layer(torch.ones(rows, 16))
        loss = h.exp().tanh().sum()
        if iteration % 3:
            loss.backward()
        del h, loss
        runtime.activations.end_iteration()
    assert runtime.activations.kept_bytes == 0
    assert activations(runtime) == 0


def test_without_room_in_chunks_tensors_stay(runtime: Runtime) -> None:
    x = torch.ones(4096, 1024, requires_grad=True)  # 16 MiB, all of the places.
    h = x * 2
    y = h.exp().tanh().sum()
    del h
    y.backward()
    assert x.grad is not None


def test_after_the_end_nothing_is_moved() -> None:
    runtime = runtimes.start(
        FakeClient(lease_budget=64), Observer(), adopt_everything=False, allowance=lambda: 0
    )
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        runtimes.stop()
    x = torch.ones(64, 64, requires_grad=True)
    x.exp().exp().sum().backward()
    assert runtime.activations.moved_bytes == 0
    runtime.activations.hooks.unset()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
