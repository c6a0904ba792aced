"""Speculative steps: useful in the plain training loop, never wrong in any.

The fake client computes with torch's arithmetic, so every loop must give the bits of plain torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from memtide._torch_hooks import runtime as runtimes
from memtide.errors import InvalidArgument
from speculative_loops import (
    AGAIN,
    BY_OURS,
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


def as_plain_torch(work: Work, *, settled: bool, exact: bool = False) -> Run:
    """The observer of a loop, after asserting that the loop gave the bits of plain torch."""
    assert runtimes.current() is None
    expected = work()
    run = Run(exact=exact)
    if settled:
        run.settle_before_steps()
    try:
        got = work()
    finally:
        runtimes.stop()
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    assert run.runtime.offloaded.steps > 0 or (exact and work in BY_OURS)
    return run


@pytest.mark.parametrize("work", [*EARLY, *AGAIN], ids=lambda work: work.__name__)
def test_training_gives_the_bits_of_plain_torch(work: Work) -> None:
    as_plain_torch(work, settled=False)


@pytest.mark.parametrize("work", EARLY, ids=lambda work: work.__name__)
def test_parts_made_during_backward_count(work: Work) -> None:
    assert as_plain_torch(work, settled=True).waits.counted() > 0


@pytest.mark.parametrize("work", [*EARLY, *AGAIN], ids=lambda work: work.__name__)
def test_torch_makes_the_same_parts_during_backward(work: Work) -> None:
    run = as_plain_torch(work, settled=work in EARLY, exact=True)
    assert run.client.step_calls == []
    assert bool(run.runtime.offloaded.here) == (work in BY_OURS)
    if work in EARLY:
        assert bool(run.waits.counted()) == (work not in BY_OURS)


def test_the_plain_loop_makes_its_steps_during_backward(run: Run) -> None:
    loop(lambda *_: run.settle())
    assert [step.counted for step in run.waits.steps[:2]] == [0, 0]
    for step in run.waits.steps[2:]:
        assert step.computed == step.counted == step.all > 0
    assert len(run.waits.steps) == STEPS


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
    run.client.fail_step_call[len(run.client.step_calls) + 2] = InvalidArgument("on purpose")
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
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(InvalidArgument, match="lr of adam is nan"):
        optimizer.step()
    assert all(map(torch.equal, values(model, optimizer), before))
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert run.client.committed_steps == 4


def test_nothing_is_left_when_the_runtime_ends_during_an_attempt() -> None:
    run = Run()
    try:
        model, optimizer = trained()
        go, begun, step = threading.Event(), threading.Event(), run.client.step

        def held_up(*call: Any, **options: Any) -> int:
            begun.set()
            assert go.wait(30)
            return int(step(*call, **options))

        run.client.step = held_up  # type: ignore[method-assign]
        backward(model)
        assert begun.wait(30)
        go.set()
    finally:
        runtimes.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("memtide-step")]
    assert len(run.client.kinds) == run.runtime.manager.chunks()  # No shadow chunk is left.


def test_backward_does_not_wait_for_what_is_made(run: Run) -> None:
    model, optimizer = trained()
    go, step = threading.Event(), run.client.step

    def held_up(*call: Any, **options: Any) -> int:
        assert go.wait(30)
        return int(step(*call, **options))

    run.client.step = held_up  # type: ignore[method-assign]
    backward(model)  # No call is made before backward has ended.
    go.set()
    run.settle()
    optimizer.step()
    assert run.waits.steps[-1].computed > 0


def test_where_a_call_might_wait_for_the_process_nothing_is_early() -> None:
    run = Run(lease_budget=12)  # A call needs 8 of these.
    try:
        plain()
    finally:
        runtimes.stop()
    assert run.runtime.offloaded.steps == STEPS
    assert not any(step.computed for step in run.waits.steps)
