"""Clipping that clips nothing writes to no chunk; any other gives torch's results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_client import FakeClient, one_chunk_each
from harness import SCRIPTS, Cli
from memtide._telemetry.observer import Observer
from memtide._torch_hooks import runtime as runtimes
from memtide._torch_hooks.runtime import Runtime
from recording_gpu import RecordingGpu
from reference_runs import ReferenceRuns
from speculative_loops import adam, backward, network, values
from torch import nn
from torch.func import vmap

# Imported by name before a runtime exists, as scripts do.
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

WAYS = [True, False, None]


class Multiplied:
    """Counts the tensors that torch has multiplied in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._addresses: list[int] = []
        one, many = torch.Tensor.mul_, torch._foreach_mul_

        def mul_(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
            self._addresses.append(tensor.data_ptr())
            return one(tensor, *args)

        def _foreach_mul_(tensors: list[torch.Tensor], *args: Any) -> Any:
            self._addresses += [tensor.data_ptr() for tensor in tensors]
            return many(tensors, *args)

        monkeypatch.setattr(torch.Tensor, "mul_", mul_)
        monkeypatch.setattr(torch, "_foreach_mul_", _foreach_mul_)

    def take(self, runtime: Runtime) -> int:
        """The number of these tensors in chunks since the last call."""
        count = sum(map(runtime.memory.addresses.in_range, self._addresses))
        self._addresses.clear()
        return count


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> Multiplied:
    return Multiplied(monkeypatch)


@pytest.fixture
def runtime(multiplied: Multiplied) -> Iterator[Runtime]:
    yield runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()


def with_gradients() -> nn.Module:
    model = network()
    backward(model)
    return model


def clip(model: nn.Module, limit: float, **how: Any) -> None:
    clip_grad_norm_(model.parameters(), limit, **how)


def clip_by_generator(model: nn.Module, limit: float, **how: Any) -> None:
    clip_grad_norm_((p for p in model.parameters() if p.ndim), limit, **how)


def clip_with_own_norm(model: nn.Module, limit: float, **how: Any) -> None:
    norm = get_total_norm([p.grad for p in model.parameters()])
    clip_grads_with_norm_(model.parameters(), limit, norm, **how)


CLIPS = [clip, clip_by_generator, clip_with_own_norm]


@pytest.mark.parametrize("foreach", WAYS)
@pytest.mark.parametrize("clipping", CLIPS, ids=lambda one: one.__name__)
def test_a_coefficient_of_one_writes_to_no_chunk(
    clipping: Callable[..., None], foreach: bool | None, runtime: Runtime, multiplied: Multiplied
) -> None:
    model = with_gradients()
    before = [p.grad.clone() for p in model.parameters()]
    versions = [p.grad._version for p in model.parameters()]
    multiplied.take(runtime)
    clipping(model, math.inf, foreach=foreach)
    assert multiplied.take(runtime) == 0
    assert all(map(torch.equal, (p.grad for p in model.parameters()), before))
    assert [p.grad._version for p in model.parameters()] == [version + 1 for version in versions]
    clipping(model, 0.5, foreach=foreach)
    assert multiplied.take(runtime) > 4
    norm = get_total_norm([p.grad for p in model.parameters()])
    assert norm.item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("foreach", WAYS)
@pytest.mark.parametrize("norm_type", [2.0, 0.0, math.inf])
@pytest.mark.parametrize("factor", [1.0, math.inf, math.nan], ids=str)
def test_training_is_as_without(factor: float, norm_type: float, foreach: bool | None) -> None:
    limits = [1e-3, 1e30]  # The norm is above the first and below the second.

    def work() -> list[torch.Tensor]:
        model = network()
        optimizer = adam(model)
        torch.manual_seed(1)
        norms = []
        for step in range(4):
            optimizer.zero_grad()
            backward(model)
            if step == 3:
                model[3].weight.grad[2] *= factor
            limit = limits[step % 2]
            norms.append(clip_grad_norm_(model.parameters(), limit, norm_type, foreach=foreach))
            optimizer.step()
        return [*norms, *values(model, optimizer)]

    plain = work()
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        offloaded = work()
    finally:
        runtimes.stop()
    for value, expected in zip(offloaded, plain, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)


def test_what_is_not_finite_still_raises_where_it_shall(runtime: Runtime) -> None:
    model = with_gradients()
    model[0].weight.grad[0] = math.inf
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(model.parameters(), 1e30, error_if_nonfinite=True)
    assert model[0].weight.grad[1].isfinite().all()


def all_numbers(dtype: torch.dtype) -> torch.Tensor:
    """Every number of 16 bits, or numbers of 32 bits with every exponent, some subnormal."""
    if dtype.itemsize == 2:
        bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    else:
        bits = torch.randint(-(2**31), 2**31 - 1, (50_000,), dtype=torch.int32)
        bits[:1000] &= 0x807FFFFF - 2**32
    return bits.view(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_times_one_is_the_same_bits_of_all_but_nan(dtype: torch.dtype) -> None:
    """Holds torch itself to what the docstring of multiply_by_one.py says of it."""
    integers = torch.int16 if dtype.itemsize == 2 else torch.int32
    numbers = all_numbers(dtype)
    made = numbers * torch.tensor(1.0)
    nan = numbers.isnan()
    assert torch.equal(made.isnan(), nan)
    assert torch.equal(made.view(integers)[~nan], numbers.view(integers)[~nan])


@pytest.mark.parametrize("factor", [1, 1.0, torch.tensor(1.0), torch.tensor(1.0).double()], ids=str)
def test_every_one_is_left_out(factor: Any, runtime: Runtime, multiplied: Multiplied) -> None:
    (parameter,) = one_chunk_each(1)
    assert parameter.mul_(factor) is parameter
    assert parameter.data[5:9].mul_(factor).sum() == 0
    assert multiplied.take(runtime) == 0


def test_whatever_else_is_torchs(runtime: Runtime, multiplied: Multiplied) -> None:
    (parameter,) = one_chunk_each(1)
    for factor in (2, True, 1 + 2**-23, torch.ones(1024), torch.ones(1), torch.tensor(2.0)):
        parameter.mul_(factor)
    assert multiplied.take(runtime) == 6


def test_what_others_watch_or_record_is_torchs(runtime: Runtime, multiplied: Multiplied) -> None:
    (parameter,) = one_chunk_each(1)
    with FlopCounterMode(display=False):
        parameter.mul_(1.0)
    assert multiplied.take(runtime) == 1
    parameter.requires_grad_(True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        parameter.mul_(1.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        parameter.detach()[:1].expand(4).mul_(1.0)


def test_subnormal_numbers_are_flushed_where_a_script_wants_it(runtime: Runtime) -> None:
    (parameter,) = one_chunk_each(1)
    parameter.fill_(1e-40)
    assert torch.set_flush_denormal(True)
    try:
        parameter.mul_(1.0)
    finally:
        torch.set_flush_denormal(False)
    assert parameter.count_nonzero() == 0


def test_tensors_that_stand_for_others_are_torchs() -> None:
    runtime = runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        (parameter,) = one_chunk_each(1)
        rows = parameter.add_(3).view(32, 32)
        assert runtime.memory.addresses.manages(rows)
        vmap(lambda row, factor: row.mul_(factor))(rows, torch.ones(32))
        assert rows.mean() == 3
        twice = torch.compile(lambda x: torch._foreach_mul_([x.mul_(1.0)], 2.0), backend="eager")
        twice(rows)
        assert rows.mean() == 6
    finally:
        runtimes.stop()


def test_the_hooks_go_with_the_runtime() -> None:
    before = torch.Tensor.mul_, torch._foreach_mul_
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    runtimes.stop()
    assert (torch.Tensor.mul_, torch._foreach_mul_) == before


@pytest.mark.parametrize("device", ["none", "cuda"])
@pytest.mark.parametrize("limits", [("1e6",), ("1e6",) * 6 + ("1e-6",)], ids="-".join)
@pytest.mark.parametrize("name", ["clipping", "scaled_clipping"])
def test_a_daemons_early_parts_count_where_nothing_is_clipped(
    name: str,
    limits: tuple[str, ...],
    device: str,
    request: pytest.FixtureRequest,
    cli: Cli,
    reference_runs: ReferenceRuns,
    tmp_path: Path,
) -> None:
    if device == "cuda":
        request.getfixturevalue("gpu")
    script = SCRIPTS / f"{name}.py"
    plain = reference_runs.result(script, *limits)
    offloaded, stats = tmp_path / "offloaded", tmp_path / "stats"
    cli.memtide(
        "run",
        f"--device={device}",
        *(["--device-pool=14MiB"] if device == "cuda" else []),
        "--host-pool=48MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={stats}",
        script,
        *limits,
        RESULT=offloaded,
        ON_GPU="1",  # Makes the script copy results to the CPU.
    ).check()
    assert offloaded.read_text() == plain.read_text()
    statistics = json.loads(stats.read_text())
    assert statistics["offloaded_steps"] > 8
    speculative = statistics["speculative_steps"]
    assert speculative["counted"] > 0
    if "1e-6" not in limits:
        assert speculative["computed_again"] == 0


def test_a_factor_on_a_gpu_is_awaited_only_while_parts_are_computed(
    cpu_as_gpu: RecordingGpu, runtime: Runtime, multiplied: Multiplied
) -> None:
    model = with_gradients()
    gradient = model[0].weight.grad
    assert gradient is not None
    before = gradient.clone()
    one = torch.tensor(1.0)
    assert not runtime.offloaded.speculative.in_progress
    multiplied.take(runtime)
    gradient.mul_(one)
    assert multiplied.take(runtime) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(runtime.offloaded.speculative), "in_progress", True)
        gradient.mul_(one)
    assert multiplied.take(runtime) == 0
    assert torch.equal(gradient, before)


# A table of a script, made before a runtime exists.
_HANDLED: dict[Any, str] = {torch.Tensor.mul_: "one", torch._foreach_mul_: "many"}


class Handler(nn.Parameter):
    """Looks functions up as `@implements(torch.Tensor.mul_)` does."""

    seen: list[tuple[str | None, bool]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HANDLED:
            cls.seen.append((_HANDLED[func], func in (torch.Tensor.mul_, torch._foreach_mul_)))
        return super().__torch_function__(func, types, args, kwargs or {})


class SeesMultiplications(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str | None, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HANDLED:
            is_public = func is torch.Tensor.mul_ or func is torch._foreach_mul_
            self.seen.append((_HANDLED[func], is_public))
        return func(*args, **(kwargs or {}))


def test_modes_and_subclasses_see_each_multiplication_under_the_names_of_torch() -> None:
    mode = SeesMultiplications()
    Handler.seen.clear()
    runtimes.start(FakeClient(), Observer(), adopt_everything=True)
    try:
        plain = one_chunk_each(2)
        handled = [Handler(tensor) for tensor in one_chunk_each(2)]
        with torch.no_grad():
            for factor in (1.0, 0.5):
                with mode:
                    plain[0].mul_(factor)
                    torch._foreach_mul_(plain, factor)
                handled[0].mul_(factor)
                torch._foreach_mul_(handled, factor)
    finally:
        runtimes.stop()
    assert mode.seen == [("one", True), ("many", True)] * 2
    assert Handler.seen == [("one", True), ("many", True)] * 2
