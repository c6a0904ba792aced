"""Threads of one process that train models of their own, with a fake client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fake_client import CHUNK_BYTES, FakeClient
from memtide._optimizer_step.offloaded_step import OffloadedSteps
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from offloaded_loops import assert_same, everything
from torch import nn

_WIDTH, _STEPS, _PATIENCE_S = 40, 30, 60
_SAID = "memtide: optimizers step in the script's thread from now on: several threads train\n"
_OPTIMIZERS: list[Callable[[nn.Module], torch.optim.Optimizer]] = [
    lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    lambda m: torch.optim.RMSprop(m.parameters(), lr=0.001, momentum=0.9),
]


class Training:
    """A model, its optimizer and its random numbers, all of one thread."""

    def __init__(self, number: int) -> None:
        self._generator = torch.Generator().manual_seed(number)
        self._number = number
        self.model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(self._random(*parameter.shape) / _WIDTH**0.5)
        self.optimizer = _OPTIMIZERS[number % len(_OPTIMIZERS)](self.model)

    def backward(self) -> torch.Tensor:
        loss = (self.model(self._random(4, _WIDTH)) - 1).square().mean()
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self) -> list[torch.Tensor]:
        """Some steps of accumulated gradients, and some that fail; all that comes out of them."""
        losses = []
        for step in range(_STEPS):
            losses += [self.backward() for _ in range(1 + (step + self._number) % 2)]
            if step % 5 == 3:
                with pytest.raises(ArithmeticError):
                    self.optimizer.step(_failing)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=step % 2 == 0)
        return [*losses, *everything(self.model, self.optimizer)]

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._generator)


def _failing() -> float:
    raise ArithmeticError("on purpose")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(lease_budget=16), Observer(), adopt_everything=True)
    runtimes.stop()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def done(future: Future[Any]) -> Any:
    return future.result(_PATIENCE_S)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_each_model_is_trained_as_by_plain_torch(threads: int, pool: ThreadPoolExecutor) -> None:
    expected = [Training(number).run() for number in range(threads)]
    runtime = runtimes.start(FakeClient(lease_budget=16), Observer(), adopt_everything=True)
    try:
        results = [pool.submit(lambda n=n: Training(n).run()) for n in range(threads)]
        for result, its_expected in zip(results, expected, strict=True):
            assert_same(done(result), its_expected)
        assert not runtime.offloaded.allowed
    finally:
        runtimes.stop()


def test_a_step_that_another_thread_overtakes_is_made_in_place(
    runtime: Runtime,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    one, other = Training(0), Training(1)
    one.step()
    assert runtime.client.committed_steps == 1
    run_or_redo = OffloadedSteps._run_or_redo

    def overtaken(steps: OffloadedSteps, updates: Any) -> None:
        assert steps.allowed
        done(pool.submit(other.step))
        run_or_redo(steps, updates)

    monkeypatch.setattr(OffloadedSteps, "_run_or_redo", overtaken)
    one.step()
    assert capfd.readouterr().err == _SAID
    monkeypatch.undo()
    trained = [everything(each.model, each.optimizer) for each in (one, other)]
    assert runtime.client.committed_steps == 1
    runtimes.stop()
    one, other = Training(0), Training(1)
    one.step()
    one.step()
    other.step()
    assert_same(trained[0], everything(one.model, one.optimizer))
    assert_same(trained[1], everything(other.model, other.optimizer))


def test_a_model_that_a_thread_makes_beside_a_training_is_whole(
    runtime: Runtime, pool: ThreadPoolExecutor
) -> None:
    training = Training(0)
    training.step()
    made = []
    # The second part is being computed when the model is made.
    runtime.client.before_part = lambda: made or made.append(pool.submit(nn.Linear, 32, 32))
    training.step()
    assert made
    module = done(made[0])
    assert runtime.memory.addresses.manages(module.weight)
    assert not module.weight.isnan().any()
    assert not runtime.offloaded.allowed


@pytest.mark.parametrize("moment", ["before_part", "before_commit"])
def test_what_a_thread_writes_beside_a_step_stays(
    moment: str, runtime: Runtime, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(0)
    holder = nn.Module()
    holder.average = nn.Parameter(torch.ones(CHUNK_BYTES // 8), requires_grad=False)
    (place,) = runtime.memory.addresses.element_places(holder.average)
    assert place in runtime.memory.addresses.element_places(training.model[-1].weight)
    training.step()
    written = []

    def write() -> None:
        if not written:
            written.append(holder.average.data.fill_(2))

    setattr(runtime.client, moment, write)
    training.step()
    assert written
    assert holder.average.eq(2).all()
    assert "another thread writes to chunks" in capfd.readouterr().err
    assert runtime.client.committed_steps == 1
    trained = everything(training.model, training.optimizer)
    runtimes.stop()
    training = Training(0)
    training.step()
    training.step()
    assert_same(trained, everything(training.model, training.optimizer))


def test_an_optimizer_may_go_from_thread_to_thread(
    runtime: Runtime, pool: ThreadPoolExecutor
) -> None:
    training = Training(0)
    for _ in range(3):
        done(pool.submit(training.step))
        training.step()
    assert runtime.client.committed_steps == 6


def test_threads_and_optimizers_that_are_gone_do_not_count(runtime: Runtime) -> None:
    for number in range(2):
        with ThreadPoolExecutor(1) as alone:
            done(alone.submit(lambda n=number: Training(n).step()))
    training = Training(0)
    training.step()
    del training
    with ThreadPoolExecutor(1) as alone:
        done(alone.submit(lambda: Training(1).step()))
    assert runtime.client.committed_steps == 4


def test_a_thread_that_ends_within_a_step_keeps_no_other_one_waiting(
    runtime: Runtime, pool: ThreadPoolExecutor
) -> None:
    def end_in_a_step() -> None:
        with contextlib.suppress(SystemExit):
            training = Training(0)
            training.backward()
            training.optimizer.step(lambda: exit())  # noqa: PLR1722  # As a script would.

    for _ in range(2):
        done(pool.submit(end_in_a_step))
    done(pool.submit(Training(1).step))
    Training(2).step()
    assert not runtime._stepping


def test_threads_may_wait_for_each_other_in_closures(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(2, timeout=_PATIENCE_S)

    def train(number: int) -> list[torch.Tensor]:
        training = Training(number)

        def closure() -> torch.Tensor:
            together.wait()
            training.optimizer.zero_grad()
            return training.backward()

        for _ in range(5):
            training.optimizer.step(closure)
            together.wait()
        return everything(training.model, training.optimizer)

    expected = [done(result) for result in [pool.submit(train, number) for number in range(2)]]
    runtimes.start(FakeClient(lease_budget=16), Observer(), adopt_everything=True)
    try:
        results = [pool.submit(train, number) for number in range(2)]
        for result, its_expected in zip(results, expected, strict=True):
            assert_same(done(result), its_expected)
    finally:
        runtimes.stop()
