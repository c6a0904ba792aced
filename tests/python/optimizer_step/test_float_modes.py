"""Step parts are computed in the floating-point modes of the thread that steps."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from memtide._optimizer_step import float_modes
from memtide._torch_hooks import runtime as runtimes
from offloaded_loops import assert_same, everything
from speculative_run import Run
from torch import nn

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs MXCSR")

_STEPS, _ON, _OFF = 12, 5, 9
_UPWARD, _NEAREST = 0x800, 0  # As in fenv.h.

Switch = Callable[[bool], object]


def flushing(on: bool) -> None:
    torch.set_flush_denormal(on)


def rounding_upward(on: bool) -> None:
    ctypes.CDLL("libm.so.6").fesetround(_UPWARD if on else _NEAREST)


@pytest.fixture(autouse=True)
def _modes() -> Iterator[None]:
    yield
    flushing(False)
    rounding_upward(False)


def trained(switch: Switch, settle: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """Everything that comes out of steps, between some of which a mode is on. Squares of gradients
    are subnormal."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(40, 40, bias=False) for _ in range(12)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    results = []
    for step in range(_STEPS):
        if step in (_ON, _OFF):
            switch(step == _ON)
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 40)) - 1).square().mean()
        (loss * 1e-15).backward()
        settle()
        optimizer.step()
        results += [loss.detach(), *everything(model, optimizer)]
    return results


@pytest.mark.parametrize("switch", [flushing, rounding_upward])
@pytest.mark.parametrize("early", [False, True], ids=["at the step", "during backward"])
def test_modes_that_change_between_steps_hold_in_their_parts(switch: Switch, early: bool) -> None:
    plain = trained(switch)
    assert any(not torch.equal(a, b) for a, b in zip(plain, trained(lambda _: None), strict=True))
    run = Run(lease_budget=32)
    try:
        run.runtime.offloaded.speculative.allowed = early
        assert_same(trained(switch, run.settle if early else lambda: None), plain)
        assert run.client.committed_steps == _STEPS
        assert bool(run.waits.counted()) == early
    finally:
        runtimes.stop()


def test_where_torch_s_threads_may_have_other_modes_steps_are_made_in_place() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    run = Run()
    try:
        trained(flushing)
        assert run.client.committed_steps == _STEPS - (_OFF - _ON)
    finally:
        runtimes.stop()
        torch.set_num_threads(before)


def test_modes_are_of_a_thread_and_end_with_the_block() -> None:
    flushing(True)
    flushed = float_modes.present()
    flushing(False)
    assert float_modes.present() == float_modes.DEFAULT != flushed
    seen: list[int] = []

    def compute() -> None:
        with pytest.raises(ArithmeticError), float_modes.set_to(flushed):
            seen.append(float_modes.present())
            raise ArithmeticError("on purpose")
        seen.append(float_modes.present())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert seen == [flushed, float_modes.DEFAULT]
    assert float_modes.present() == float_modes.DEFAULT


def test_what_has_been_computed_does_not_change_modes() -> None:
    torch.tensor([1e-30]).square_().div_(0)
    assert float_modes.present() == float_modes.DEFAULT
