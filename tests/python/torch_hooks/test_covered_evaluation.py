"""Passes without gradients run without lease dispatch where all fits, with a fake client."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from fake_client import FakeClient
from lease_dispatched import (
    ROOMY,
    Training,
    begins_phase,
    chunks_of,
    stack,
    stats_of_cuda,
)
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from torch import nn
from torch.nn.modules import module as torch_modules

_PASSES = 3
_without = pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])


class Watched(nn.Module):
    """A model that calls a function within its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.within: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(x)
        self.within()
        return hidden * 2


def _evaluate(model: nn.Module, passes: int = _PASSES) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([model(torch.ones(4, 64)) for _ in range(passes)])


@_without
def test_an_operation_of_a_pass_is_seen_only_in_the_first_one(
    runtime: Runtime, seen: list[str], without: Callable[[], AbstractContextManager[None]]
) -> None:
    model, x = Watched(), torch.ones(4, 64)
    with without():
        model(x)
        assert "aten.mul.Tensor" in seen
        seen.clear()
        before = runtime.memory.costs.operations
        model(x)
        assert seen == [] and runtime.memory.costs.operations == before
        x.add(1)
    assert seen == ["aten.add.Tensor"], "what is between passes is seen"


def test_outputs_are_those_of_plain_torch_to_the_bit() -> None:
    def run() -> torch.Tensor:
        training = Training()
        outputs = []
        for _ in range(6):
            training.step()
            outputs.append(_evaluate(training.model))
        return torch.stack(outputs)

    plain = run()
    runtimes.start(
        FakeClient(handles_faults=False, lease_budget=ROOMY), Observer(), adopt_everything=True
    )
    try:
        assert torch.equal(run(), plain)
    finally:
        runtimes.stop()


def _outermost_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    return [layer, torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.GELU()))]


@pytest.mark.parametrize("number", [0, 1], ids=["its hooks choose its kernels", "takes no hooks"])
def test_a_module_that_may_have_no_hook_computes_what_plain_torch_does(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = _outermost_layers()[number], torch.ones(2, 8, 64)
    fused = []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *args: fused.append(0) or fast(*args)
    )
    with torch.no_grad():
        plain, by_plain = module(x), len(fused)
        runtimes.start(
            FakeClient(handles_faults=False, lease_budget=ROOMY), Observer(), adopt_everything=True
        )
        try:
            assert torch.equal(module(x), plain)
        finally:
            runtimes.stop()
    assert len(fused) == 2 * by_plain == 2 * (number == 0)


def test_every_chunk_is_leased_in_a_pass_and_none_after_it(runtime: Runtime) -> None:
    model = Watched()
    (net,) = stack()
    _evaluate(model, 1)
    leased: list[set[int]] = []
    model.within = lambda: leased.append(runtime.client.in_use())
    _evaluate(model, 1)
    assert leased == [chunks_of(runtime)] and leased != [set()]
    assert runtime.client.in_use() == set() and stack() == [net]


def test_module_hooks_are_out_in_a_pass_and_the_model_has_none_after_it(runtime: Runtime) -> None:
    model = Watched()
    _evaluate(model, 1)
    during: list[int] = []
    model.within = lambda: during.append(len(torch_modules._global_forward_pre_hooks))
    _evaluate(model, 1)
    model.within = int
    assert during == [0] and len(torch_modules._global_forward_pre_hooks) == 1
    assert not model._forward_hooks
    copy.deepcopy(model)
    pickle.dumps(model.layers)


def test_training_after_an_evaluation_has_its_own_phase(runtime: Runtime, seen: list[str]) -> None:
    training = Training().warm_up()
    for _ in range(2):
        _evaluate(training.model)
        assert not runtime.ledger.holding
        training.optimizer.zero_grad()
        seen.clear()
        training.forward().backward()
        training.optimizer.step()
        assert seen == []


def test_an_evaluation_within_an_iteration_leaves_its_phase(
    runtime: Runtime, seen: list[str]
) -> None:
    training = Training().warm_up()
    training.optimizer.zero_grad()
    seen.clear()
    loss = training.forward()
    _evaluate(training.model)
    assert runtime.ledger.holding
    loss.backward()
    training.optimizer.step()
    assert seen == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_pass_that_raises_ends_or_the_next_call_ends_it(
    runtime: Runtime, error: type[BaseException]
) -> None:
    model = Watched()
    (net,) = stack()
    _evaluate(model, 1)

    def fail() -> None:
        assert runtime.ledger.holding
        raise error

    model.within = fail
    with pytest.raises(error):
        _evaluate(model, 1)
    if error is KeyboardInterrupt:  # Torch calls no hooks for it.
        model.eval()
    assert not runtime.ledger.holding and stack() == [net]
    model.within = int
    _evaluate(model)
    assert not model._forward_hooks and runtime.client.in_use() == set()


def test_a_chunk_that_is_new_since_the_last_pass_is_seen_first(
    runtime: Runtime, seen: list[str]
) -> None:
    model = Watched()
    _evaluate(model)
    other = Watched()
    seen.clear()
    _evaluate(other, 1)
    assert seen.count("aten.mul.Tensor") == 1
    seen.clear()
    _evaluate(model, 1)
    assert "aten.mul.Tensor" not in seen


@pytest.mark.parametrize("runtime", [6], indirect=True)
def test_passes_are_seen_where_chunks_do_not_fit(runtime: Runtime, seen: list[str]) -> None:
    model = Watched()
    _evaluate(model)
    assert seen.count("aten.mul.Tensor") == _PASSES


def test_passes_are_seen_without_headroom_and_training_asks_for_itself(
    runtime: Runtime, seen: list[str], cuda: dict[str, Any]
) -> None:
    training = Training().warm_up()
    model = Watched()
    cuda.update(stats_of_cuda(reserved_bytes=0))
    seen.clear()
    _evaluate(model)
    assert seen.count("aten.mul.Tensor") == _PASSES
    training.step()
    cuda.update(stats_of_cuda(reserved_bytes=4096))
    training.step()
    assert begins_phase(runtime, training)


def test_another_thread_neither_begins_nor_ends_a_pass(runtime: Runtime, seen: list[str]) -> None:
    model = Watched()
    _evaluate(model)

    def in_thread() -> None:
        model.within = int
        thread = threading.Thread(target=_evaluate, args=(model, 1))
        seen.clear()
        thread.start()
        thread.join()
        assert "aten.mul.Tensor" in seen and runtime.ledger.holding
        seen.clear()

    model.within = in_thread
    _evaluate(model, 1)
    assert "aten.mul.Tensor" not in seen and not runtime.ledger.holding
