"""Leases of compiled regions, and how these run beside threads, modes and too little memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_training import (
    ALL,
    BLOCKS,
    WIDTH,
    Graphs,
    Training,
    by_blocks,
    plain_losses,
    start,
)
from memtide._capi.client import Access, Phase
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.on_gpu import device_guards
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.usefixtures("compiler")
LEASE_BUDGET = ALL + 2


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
        assert runtime.client.reported.count(block) == BLOCKS
        assert runtime.client.reported.count((Phase.BACKWARD, "forward")) == BLOCKS
        first = training.model.blocks[0]
        places = {
            place
            for each in (first.first, first.second)
            for place in runtime.memory.addresses.span_places(each.weight)
        }
        together = [set(leased) for leased, _ in runtime.client.acquired]
        assert together.count(places) >= 2, "in forward, and in backward"
    finally:
        runtimes.stop()


def test_a_region_that_writes_to_parameters_leases_them_for_writing(runtime: Runtime) -> None:
    scaled, read = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    @torch.no_grad()
    def scale(x: torch.Tensor) -> torch.Tensor:
        scaled.weight.mul_(2)
        return x @ read.weight

    before = scaled.weight.detach().clone()
    compiled = torch.compile(scale, backend=Graphs(runtime))
    runtime.client.acquired.clear()
    compiled(torch.randn(2, WIDTH))
    assert torch.equal(scaled.weight, before * 2)
    places = [runtime.memory.addresses.span_places(each.weight)[0] for each in (scaled, read)]
    accesses = [{a for p, a in runtime.client.acquired if place in p} for place in places]
    assert Access.WRITE in accesses[0]
    assert accesses[1] == {Access.READ}


def test_a_region_that_runs_short_runs_again_with_fewer_chunks_on_the_device(
    runtime: Runtime,
) -> None:
    plain = plain_losses(lambda model: torch.compile(model, backend=Graphs()))
    graphs = ShortGraphs(runtime)
    runtime.client.lease_budget = ALL + 8
    runtime.ledger.refresh()
    training = Training(lambda model: torch.compile(model, backend=graphs))
    assert training.losses() == plain
    assert (graphs.forward, graphs.backward) == (6, 6), "each ran once more"


def test_an_error_of_a_region_that_is_no_shortage_is_the_scripts(runtime: Runtime) -> None:
    graphs = ShortGraphs(runtime, RuntimeError("a mistake of the script"))
    slots = runtime.client.slots
    training = Training(lambda model: torch.compile(model, backend=graphs))
    with pytest.raises(RuntimeError, match="a mistake of the script"):
        training.losses(1)
    assert (graphs.forward, runtime.client.slots) == (1, slots), "it ran once, with all chunks"
    assert runtime.client.in_use() == set()


class ShortGraphs(Graphs):
    """Whose first graph of each phase fails, by default as it finds too little memory."""

    def __init__(self, runtime: Runtime, error: RuntimeError | None = None) -> None:
        super().__init__(runtime)
        self._error = error or torch.OutOfMemoryError("Tried to allocate 4.00 KiB.")

    def _counting(self, gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        run = super()._counting(gm, phase)

        def run_short(args: list[Any]) -> Any:
            if not getattr(self, phase):
                args.clear()
                setattr(self, phase, 1)
                raise self._error
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
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    pair = TwoTensor(first.weight.detach(), second.weight.detach())
    graphs = Graphs(runtime)
    runtime.client.acquired.clear()
    torch.compile(lambda x: x * 2, backend=graphs)(pair)
    leased = {place for places, _ in runtime.client.acquired for place in places}
    for each in (first, second):
        assert set(runtime.memory.addresses.span_places(each.weight)) <= leased
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
