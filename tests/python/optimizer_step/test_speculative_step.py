"""Speculative steps: useful in the plain training loop, never wrong in any.

Every loop must give the bits of plain torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from memtide._memory.leases import LeaseLedger
from memtide._torch_hooks import runtime as runtimes
from memtide.errors import InvalidArgument
from speculative_loops import (
    AGAIN,
    EARLY,
    STEPS,
    adam,
    backward,
    loop,
    network,
    plain,
    trained,
    values,
)
from speculative_run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    yield Run()
    runtimes.stop()


Work = Callable[[], list[torch.Tensor]]


def as_plain_torch(work: Work, *, settled: bool) -> Run:
    """The observer of a loop, after asserting that the loop gave the bits of plain torch."""
    assert runtimes.current() is None
    expected = work()
    run = Run()
    if settled:
        run.settle_before_steps()
    try:
        got = work()
    finally:
        runtimes.stop()
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    assert run.runtime.offloaded.parts.steps > 0
    return run


@pytest.mark.parametrize("work", [*EARLY, *AGAIN], ids=lambda work: work.__name__)
def test_training_gives_the_bits_of_plain_torch(work: Work) -> None:
    as_plain_torch(work, settled=False)


@pytest.mark.parametrize("work", EARLY, ids=lambda work: work.__name__)
def test_parts_made_during_backward_count(work: Work) -> None:
    assert as_plain_torch(work, settled=True).waits.counted() > 0


def test_the_plain_loop_makes_its_steps_during_backward(run: Run) -> None:
    loop(lambda *_: run.settle())
    assert [step.counted for step in run.waits.steps[:2]] == [0, 0]
    for step in run.waits.steps[2:]:
        assert step.computed == step.counted == step.all > 0
    assert len(run.waits.steps) == STEPS


def test_a_backward_pass_that_raises_leaves_no_later_one_with_leases(run: Run) -> None:
    def fail(_gradient: torch.Tensor) -> None:
        raise ValueError("no")

    model = network()
    adam(model)
    backward(model)
    run.settle()
    failure = next(model.parameters()).register_hook(fail)
    with pytest.raises(ValueError, match="no"):
        backward(model)
    failure.remove()
    backward(model)
    run.settle()
    assert run.client.in_use() == set()


def test_attempts_in_vain_become_rare(run: Run) -> None:
    model = network()
    optimizer = adam(model)
    for _ in range(20):
        optimizer.zero_grad()
        backward(model)
        run.settle()
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        optimizer.step()
    tried = [number for number, step in enumerate(run.waits.steps) if step.computed]
    assert tried == [2, 5, 10, 19]
    assert run.waits.counted() == 0


def test_what_fails_early_is_made_at_the_step(run: Run) -> None:
    model, optimizer = trained()
    run.client.fail_part[run.client.begun_parts + 2] = InvalidArgument("on purpose")
    backward(model)
    run.settle()
    optimizer.step()
    assert run.waits.steps[-1].computed > 0
    assert run.waits.steps[-1].counted == 0
    assert run.client.committed_steps == 4


def test_a_step_that_fails_forgets_what_was_made_for_it(run: Run) -> None:
    model, optimizer = trained()
    backward(model)
    before = values(model, optimizer)
    run.settle()
    optimizer.param_groups[0]["lr"] = 0.02  # Parts are computed again, and one fails.
    run.client.fail_part[run.client.begun_parts + 1] = InvalidArgument("on purpose")
    with pytest.raises(InvalidArgument, match="on purpose"):
        optimizer.step()
    assert all(map(torch.equal, values(model, optimizer), before))
    optimizer.step()
    assert run.client.committed_steps == 4


def test_nothing_is_left_when_the_runtime_ends_during_an_attempt() -> None:
    run = Run()
    try:
        model, optimizer = trained()
        go, begun = threading.Event(), threading.Event()

        def held_up() -> None:
            begun.set()
            assert go.wait(30)

        run.client.before_part = held_up
        backward(model)
        assert begun.wait(30)
        go.set()
    finally:
        runtimes.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("memtide-step")]
    assert len(run.client.kinds) == run.runtime.memory.arenas.chunks()  # No shadow chunk is left.


def test_backward_does_not_wait_for_what_is_made(run: Run) -> None:
    model, optimizer = trained()
    go = threading.Event()

    def held_up() -> None:
        assert go.wait(30)

    run.client.before_part = held_up
    backward(model)  # No call is made before backward has ended.
    go.set()
    run.settle()
    optimizer.step()
    assert run.waits.steps[-1].computed > 0


def test_where_a_call_might_wait_for_the_process_nothing_is_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LeaseLedger, "leave", lambda *_: False)
    run = Run(lease_budget=12)
    try:
        plain()
    finally:
        runtimes.stop()
    assert run.runtime.offloaded.parts.steps == STEPS
    assert not any(step.computed for step in run.waits.steps)
