"""The parts of a script that torch.compile compiles, by how many chunks may be leased together."""

from __future__ import annotations

import memtide
import pytest
import torch
from compiled_training import (
    ALL,
    BLOCKS,
    ROOMY,
    WIDTH,
    Graphs,
    Training,
    by_blocks,
    plain_losses,
    start,
)
from fake_client import one_chunk_each
from memtide._memory.adoption import restore
from memtide._torch_hooks import compiled_regions
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.module_parameters import ModuleParameters
from memtide._torch_hooks.runtime import Runtime
from torch import nn

pytestmark = pytest.mark.usefixtures("compiler")
LEASE_BUDGET = ALL + 2


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
@pytest.mark.parametrize("budget", [ALL, ROOMY])
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
        steps = 5 * BLOCKS
        assert (graphs.compiled, graphs.forward, graphs.backward) == (1, steps, steps)
        assert graphs.unleased == []
        assert runtime.client.in_use() == set()
    finally:
        runtimes.stop()


def _count_lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the regions whose chunks are looked up from now on, once for each time."""
    looked_up: list[str] = []

    class Counted(ModuleParameters):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            looked_up.append(name)

    monkeypatch.setattr(compiled_regions, "ModuleParameters", Counted)
    return looked_up


@pytest.mark.parametrize("runtime", [6], indirect=True)
def test_the_chunks_of_each_of_equal_blocks_are_looked_up_once(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: by_blocks(model, graphs))
    looked_up = _count_lookups(monkeypatch)
    training.losses(2)
    assert len(looked_up) == BLOCKS
    with torch.no_grad():
        training.function(training.tokens)
    assert len(looked_up) == 2 * BLOCKS, "nothing is trained"
    training.losses(3)
    assert len(looked_up) == 2 * BLOCKS


@pytest.mark.parametrize("runtime", [6], indirect=True)
def test_a_region_knows_the_chunks_of_so_many_blocks_and_no_more(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_regions, "_MOST_KNOWN", BLOCKS - 1)
    graphs = Graphs(runtime)
    training = Training(lambda model: by_blocks(model, graphs))
    looked_up = _count_lookups(monkeypatch)
    training.losses(3)
    assert len(looked_up) == 3 * BLOCKS, "each is forgotten before it comes again"
    assert graphs.unleased == []


def test_in_host_memory_a_region_whose_parts_do_not_fit_either_is_compiled_whole() -> None:
    runtime = start(4, host=True)
    try:
        # No module of it is a class of the script's, which torch could compile by itself.
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)))
        graphs = Graphs()
        compiled = torch.compile(layers, backend=graphs)
        x = torch.randn(2, WIDTH)
        assert torch.equal(compiled(x), layers(x))
        assert (graphs.compiled, graphs.forward) == (1, 1)
        assert not runtime.ledger.can_keep(set(range(6)))
    finally:
        runtimes.stop()


def test_a_region_notices_a_new_parameter_in_the_memory_of_another(runtime: Runtime) -> None:
    (first,) = one_chunk_each(1)
    region = compiled_regions._Region(runtime.memory.addresses, "region")
    known = region.look_at([first])
    assert region.look_at([first]) is known
    second = nn.Parameter(first.data, requires_grad=False)
    assert second.data_ptr() == first.data_ptr()
    (reference,) = region.look_at([second]).parameters
    assert reference() is second


@pytest.mark.parametrize("runtime", [6], indirect=True)
def test_a_function_that_calls_a_larger_model_is_compiled_by_its_blocks(runtime: Runtime) -> None:
    graphs = Graphs(runtime)
    training = Training(lambda model: model)
    training.function = torch.compile(lambda tokens: training.model(tokens) * 2, backend=graphs)
    training.losses()
    assert (graphs.compiled, graphs.unleased) == (1, [])
    assert graphs.backward == 5 * BLOCKS


def test_module_compile_and_decorators_before_memtide_starts_are_leased() -> None:
    graphs = Graphs()
    before = Training(lambda model: torch.compile(model, backend=graphs))
    blocks = Training(lambda model: by_blocks(model, graphs))
    before.losses(2)
    compiled = graphs.compiled
    runtime = start(ALL + 2)
    graphs._runtime = runtime
    try:
        for training in (before, blocks):
            for parameter in training.model.parameters():
                runtime.module_hooks.adopt_parameter(parameter)
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
        if runtime.memory.addresses.manages(parameter):
            restore(runtime.memory, parameter)
    runtime.client.acquired.clear()
    runtime.client.reported.clear()
    training.losses(2)
    assert graphs.forward == 4
    assert (runtime.client.acquired, runtime.client.reported) == ([], [])


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


@pytest.mark.parametrize("runtime", [ROOMY], indirect=True)
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
    runtime.client.lease_budget = ALL - 1
    runtime.ledger.refresh()
    with pytest.warns(UserWarning, match=rf"Model\.forward .* uses {ALL} chunks") as caught:
        shrunk = training.losses(2)
    assert len(caught) == 1
    assert (graphs.compiled, graphs.forward) == (1, 2)
    runtime.client.lease_budget = ALL
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
    weights = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6)]

    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        for each in weights:
            x = x @ each.weight
        return x

    graphs = Graphs(runtime)
    compiled = torch.compile(all_of_them, backend=graphs)
    x = torch.randn(2, WIDTH)
    with pytest.warns(UserWarning, match=r"all_of_them .* uses 6 chunks .* lease 4\..* part"):
        assert torch.equal(compiled(x), all_of_them(x))
    compiled(x).sum().backward()
    assert graphs.compiled == 0
