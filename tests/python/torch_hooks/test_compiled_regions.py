"""Functions that torch compiles, with a fake client as on a GPU or on the host."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import memtide
import pytest
import torch
from fake_client import FakeClient, one_chunk_each
from memtide._capi.client import Access, Phase
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import device_guards
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.compiled_leases import active_net
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

_WIDTH = 32  # A weight of this width and height fills a chunk.
_BLOCKS = 4
_ALL = 2 * _BLOCKS + 2  # The chunks of a Model's parameters.
_ROOMY = 256  # A lease budget.


class Block(nn.Module):
    """Two chunks of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


class Model(nn.Module):
    """Blocks of one class, and a chunk at each end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WIDTH, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(_BLOCKS))
        self.head = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Graphs:
    """A backend of torch.compile that counts what it compiles, and what of it runs."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.compiled, self.forward, self.backward = 0, 0, 0
        self.unleased: list[str] = []  # Graphs that have run without all leases, or under a mode.
        self._runtime = runtime

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        self.compiled += 1
        if self._runtime is not None and not is_covered(self._runtime, inputs):
            self.unleased.append("compilation")
        return aot_autograd(
            fw_compiler=lambda gm, _: self._counting(gm, "forward"),
            bw_compiler=lambda gm, _: self._counting(gm, "backward"),
        )(gm, inputs)

    def _counting(self, gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            setattr(self, phase, getattr(self, phase) + 1)
            if self._runtime is not None and not is_covered(self._runtime, args):
                self.unleased.append(phase)
            own = list(args)
            args.clear()
            return gm(*own)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def is_covered(runtime: Runtime, args: list[Any]) -> bool:
    """Whether all chunks of these tensors are leased, and lease dispatch is off."""
    manager = runtime.manager
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    places = {place for each in tensors for place in manager.element_places(each)}
    return places <= runtime.client.in_use() and active_net() is None


class Training:
    """A model whose compiled steps can be watched."""

    def __init__(self, compile_: Callable[[nn.Module], Any]) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.function = compile_(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.tokens = torch.randint(_WIDTH, (4, 8))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.function(self.tokens).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def losses(self, steps: int = 5) -> list[float]:
        return [self.step() for _ in range(steps)]


@pytest.fixture(autouse=True)
def _compiler() -> Iterator[None]:
    """A test compiles anew, and expects all warnings that there are."""
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    torch._dynamo.reset()
    assert [str(each.message) for each in caught if each.category is UserWarning] == []


def start(budget: int, *, host: bool = False) -> Runtime:
    client = FakeClient(handles_faults=host, lease_budget=budget)
    return runtimes.start(client, Observer(), adopt_everything=True)


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    yield start(getattr(request, "param", _ALL + 2))
    runtimes.stop()


def by_blocks(model: Model, backend: Graphs) -> Model:
    """A model whose blocks are compiled, as a script would do it."""
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def plain_losses(compile_: Callable[[nn.Module], Any]) -> list[float]:
    losses = Training(compile_).losses()
    torch._dynamo.reset()
    return losses


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
@pytest.mark.parametrize("budget", [_ALL, _ROOMY])
def test_a_model_whose_parameters_fit_a_lease_is_one_region(budget: int, host: bool) -> None:
    plain = plain_losses(lambda model: torch.compile(model, backend=Graphs()))
    budget = budget * 3 // 2 + 3 if host else budget  # Some of it is left for page faults.
    runtime = start(budget, host=host)
    try:
        graphs = Graphs(None if host else runtime)
        training = Training(lambda model: torch.compile(model, backend=graphs))
        assert training.losses() == plain
        assert (graphs.compiled, graphs.forward, graphs.backward) == (1, 5, 5)
        assert graphs.unleased == []
        assert runtime.client.in_use() == set()
    finally:
        runtimes.stop()


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
def test_a_larger_model_is_compiled_by_its_blocks_with_one_compilation_for_all(host: bool) -> None:
    budget = 6
    plain = plain_losses(lambda model: by_blocks(model, Graphs()))
    runtime = start(budget, host=host)
    try:
        graphs = Graphs(None if host else runtime)
        training = Training(lambda model: torch.compile(model, backend=graphs))
        assert training.losses() == plain
        steps = 5 * _BLOCKS
        assert (graphs.compiled, graphs.forward, graphs.backward) == (1, steps, steps)
        assert graphs.unleased == []
        assert runtime.client.in_use() == set()
    finally:
        runtimes.stop()


@pytest.mark.parametrize("runtime", [6], indirect=True)
def test_a_function_that_calls_a_larger_model_is_compiled_by_its_blocks(runtime: Runtime) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: model)
    training.function = torch.compile(lambda tokens: training.model(tokens) * 2, backend=graphs)
    training.losses()
    assert (graphs.compiled, graphs.unleased) == (1, [])
    assert graphs.backward == 5 * _BLOCKS


def test_module_compile_and_decorators_before_memtide_starts_are_leased() -> None:
    graphs = Graphs()
    before = Training(lambda model: torch.compile(model, backend=graphs))
    blocks = Training(lambda model: by_blocks(model, graphs))
    before.losses(2)
    compiled = graphs.compiled
    runtime = start(_ALL + 2)
    graphs._runtime = runtime
    try:
        for training in (before, blocks):
            for parameter in training.model.parameters():
                runtime.moments.adopt_parameter(parameter)
            training.losses(2)
        assert graphs.unleased == []
        assert graphs.compiled == compiled + 2, "what was compiled before has no leases"
    finally:
        runtimes.stop()


def test_what_was_compiled_under_memtide_runs_on_without_it(runtime: Runtime) -> None:
    graphs = Graphs()
    training = Training(lambda model: torch.compile(model, backend=graphs))
    training.losses(2)
    runtimes.stop()
    for parameter in training.model.parameters():
        if runtime.manager.manages(parameter):
            runtime.manager.restore(parameter)
    runtime.client.acquired.clear()
    runtime.client.reported.clear()
    training.losses(2)
    assert graphs.forward == 4
    assert (runtime.client.acquired, runtime.client.reported) == ([], [])


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
def test_a_region_is_reported_and_leased_ahead_as_a_module_is(host: bool) -> None:
    runtime = start(8, host=host)
    try:
        training = Training(lambda model: by_blocks(model, Graphs()))
        training.losses(2)
        runtime.client.reported.clear()
        runtime.client.acquired.clear()
        training.losses(1)
        block = (Phase.FORWARD, "forward")
        assert runtime.client.reported.count(block) == _BLOCKS
        assert runtime.client.reported.count((Phase.BACKWARD, "forward")) == _BLOCKS
        first = training.model.blocks[0]
        places = {
            place
            for each in (first.first, first.second)
            for place in runtime.manager.span_places(each.weight)
        }
        together = [set(leased) for leased, _ in runtime.client.acquired]
        assert together.count(places) >= 2, "in forward, and in backward"
    finally:
        runtimes.stop()


def test_what_memtide_hold_has_counts_against_a_region(runtime: Runtime) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: torch.compile(model, backend=graphs))
    training.losses(1)
    others = one_chunk_each(3)
    with memtide.hold(others[:2]):
        training.function(training.tokens)
    with memtide.hold(others), pytest.warns(UserWarning, match="uses 10 chunks"):
        training.function(training.tokens)
    assert (graphs.forward, graphs.unleased) == (2, [])


@pytest.mark.parametrize("runtime", [_ROOMY], indirect=True)
def test_covered_phases_begin_at_a_compiled_region_and_compile_nothing_again(
    runtime: Runtime,
) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: torch.compile(model, backend=graphs))
    training.losses(20)
    training.optimizer.zero_grad()
    training.function(training.tokens)
    assert runtime.ledger.holding
    training.optimizer.step()
    assert (graphs.compiled, graphs.unleased) == (1, [])


def test_a_region_that_has_become_too_large_runs_uncompiled_and_says_so(
    runtime: Runtime,
) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: torch.compile(model, backend=graphs))
    training.losses(2)
    runtime.client.lease_budget = _ALL - 1
    runtime.ledger.refresh()
    with pytest.warns(UserWarning, match=rf"Model\.forward .* uses {_ALL} chunks") as caught:
        shrunk = training.losses(2)
    assert len(caught) == 1
    assert (graphs.compiled, graphs.forward) == (1, 2)
    runtime.client.lease_budget = _ALL
    runtime.ledger.refresh()
    training.losses(1)
    assert (graphs.compiled, graphs.forward) == (1, 3)
    runtimes.stop()
    torch._dynamo.reset()
    uncompiled = Training(lambda model: model).losses(4)
    assert shrunk == pytest.approx(uncompiled[2:], rel=1e-6)


@pytest.mark.parametrize("runtime", [4], indirect=True)
def test_a_function_without_parts_that_fit_runs_uncompiled_and_says_so(
    runtime: Runtime,
) -> None:
    weights = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(6)]

    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        for each in weights:
            x = x @ each.weight
        return x

    graphs = Graphs(runtime)
    compiled = torch.compile(all_of_them, backend=graphs)
    x = torch.randn(2, _WIDTH)
    with pytest.warns(UserWarning, match=r"all_of_them .* uses 6 chunks .* lease 4\..* part"):
        assert torch.equal(compiled(x), all_of_them(x))
    compiled(x).sum().backward()
    assert graphs.compiled == 0


def test_a_region_that_writes_to_parameters_leases_them_for_writing(runtime: Runtime) -> None:
    scaled, read = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    @torch.no_grad()
    def scale(x: torch.Tensor) -> torch.Tensor:
        scaled.weight.mul_(2)
        return x @ read.weight

    before = scaled.weight.detach().clone()
    compiled = torch.compile(scale, backend=Graphs(runtime))
    runtime.client.acquired.clear()
    compiled(torch.randn(2, _WIDTH))
    assert torch.equal(scaled.weight, before * 2)
    places = [runtime.manager.span_places(each.weight)[0] for each in (scaled, read)]
    accesses = [{a for p, a in runtime.client.acquired if place in p} for place in places]
    assert Access.WRITE in accesses[0]
    assert accesses[1] == {Access.READ}


def test_a_region_that_runs_short_runs_again_with_fewer_chunks_on_the_device(
    runtime: Runtime,
) -> None:
    plain = plain_losses(lambda model: torch.compile(model, backend=Graphs()))
    graphs = ShortGraphs(runtime)
    runtime.client.lease_budget = _ALL + 8
    runtime.ledger.refresh()
    training = Training(lambda model: torch.compile(model, backend=graphs))
    assert training.losses() == plain
    assert (graphs.forward, graphs.backward) == (6, 6), "each ran once more"


class ShortGraphs(Graphs):
    """Whose first graph of each phase finds too little memory."""

    def _counting(self, gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        run = super()._counting(gm, phase)

        def run_short(args: list[Any]) -> Any:
            if not getattr(self, phase):
                args.clear()
                setattr(self, phase, 1)
                raise torch.OutOfMemoryError("Tried to allocate 4.00 KiB.")
            return run(args)

        run_short._boxed_call = True  # type: ignore[attr-defined]
        return run_short


def test_threads_compile_and_run_with_leases_of_their_own(runtime: Runtime) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: torch.compile(model, backend=graphs))
    for _ in range(2):
        thread = threading.Thread(target=training.step)
        thread.start()
        thread.join()
    training.step()
    assert (graphs.compiled, graphs.forward, graphs.unleased) == (1, 3, [])


def test_modes_of_the_scripts_own_are_respected(runtime: Runtime) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: torch.compile(model, backend=graphs))
    with Own():
        training.function(training.tokens)
    assert graphs.compiled == 0
    with torch.no_grad():
        torch._dynamo.reset()
        training.function(training.tokens)
    assert (graphs.compiled, graphs.unleased) == (1, [])


class Own(TorchDispatchMode):
    """A mode of a script's own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_tensors_made_of_others_are_leased_by_their_parts(runtime: Runtime) -> None:
    first, second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
    pair = TwoTensor(first.weight.detach(), second.weight.detach())
    graphs = Graphs(runtime)
    runtime.client.acquired.clear()
    torch.compile(lambda x: x * 2, backend=graphs)(pair)
    leased = {place for places, _ in runtime.client.acquired for place in places}
    for each in (first, second):
        assert set(runtime.manager.span_places(each.weight)) <= leased
    assert graphs.unleased == []


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_with_cuda_graphs_compile_without_them_and_say_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    requests: list[dict[str, Any]] = []
    monkeypatch.setattr(
        torch, "compile", device_guards.compiling(lambda *_, **kwargs: requests.append(kwargs))
    )
    with pytest.warns(UserWarning, match=rf"mode='{mode}'\) makes no CUDA graphs"):
        torch.compile(nn.Linear(2, 2), mode=mode)
    with pytest.warns(UserWarning, match="makes no CUDA graphs"):
        torch.compile(nn.Linear(2, 2), options={"triton.cudagraphs": True, "max_autotune": False})
    assert [each["mode"] for each in requests] == [None, None]
    settings = {**torch._inductor.list_mode_options(mode)}
    assert settings.pop("triton.cudagraphs")
    assert [each["options"] for each in requests] == [settings, {"max_autotune": False}]
    torch.compile(nn.Linear(2, 2), mode="max-autotune-no-cudagraphs")
    assert requests[-1] == {"mode": "max-autotune-no-cudagraphs"}
