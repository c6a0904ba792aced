"""Optimizer steps with compiled code in them, and steps that a script compiles."""

from __future__ import annotations

import pytest
import torch
from compiled_training import ALL, Graphs, Training, start
from memtide._torch_hooks import runtime as runtimes

pytestmark = pytest.mark.usefixtures("compiler")
PRESSED = 8  # A lease budget below the chunks of a Training, so that each step is watched.


class Compiling(torch.optim.Optimizer):
    """Its update of one parameter is a compiled function, as in torchao's optimizers."""

    def __init__(self, parameters: object, backend: Graphs) -> None:
        super().__init__(parameters, {})
        self._update = torch.compile(lambda p, grad: p.sub_(grad.sign() * 0.01), backend=backend)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self._update(parameter, parameter.grad)


def _losses(training: Training) -> list[float]:
    losses = training.losses()
    torch._dynamo.reset()
    return losses


def _compiling(graphs: Graphs) -> list[float]:
    training = Training(lambda model: model)
    training.optimizer = Compiling(training.model.parameters(), graphs)
    return _losses(training)


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
def test_what_an_optimizer_compiles_runs_compiled(host: bool) -> None:
    plain_graphs, graphs = Graphs(), Graphs()
    plain = _compiling(plain_graphs)
    start(PRESSED, host=host)
    try:
        assert _compiling(graphs) == plain
    finally:
        runtimes.stop()
    assert plain_graphs.forward > 0
    assert graphs.forward == plain_graphs.forward


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
def test_a_compiled_model_runs_compiled_in_a_step_s_closure(host: bool) -> None:
    def losses(graphs: Graphs) -> list[float]:
        training = Training(lambda model: torch.compile(model, backend=graphs))
        optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = training.function(training.tokens).square().mean()
            loss.backward()
            return loss

        found = [optimizer.step(closure).item() for _ in range(2)]
        torch._dynamo.reset()
        return found

    plain_graphs, graphs = Graphs(), Graphs()
    plain = losses(plain_graphs)
    start(40, host=host)
    try:
        assert losses(graphs) == plain
    finally:
        runtimes.stop()
    assert graphs.forward == plain_graphs.forward > 0


@pytest.mark.parametrize("host", [False, True], ids=["gpu", "host"])
def test_a_step_in_a_compiled_function_is_made_as_it_is(host: bool) -> None:
    plain = _losses(Training(lambda model: model))
    runtime = start(PRESSED, host=host)
    try:
        training = Training(lambda model: model)
        compiled = torch.compile(lambda: training.optimizer.step(), backend=Graphs())
        ours = []
        for _ in range(5):
            training.optimizer.zero_grad()
            loss = training.function(training.tokens).square().mean()
            loss.backward()
            compiled()
            ours.append(loss.item())
        assert ours == pytest.approx(plain, rel=1e-5)
        states = training.optimizer.state.values()
        assert sum(len(runtime.memory.addresses.managed_in(state)) for state in states) == 2 * ALL
    finally:
        runtimes.stop()
