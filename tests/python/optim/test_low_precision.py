"""memtide.AdamW and Lion without a daemon: what they compute, and what they refuse.

With a daemon: optimizer_step/test_offloaded_step.py and end_to_end/test_long_training.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import memtide
import pytest
import torch

STEPS = 5
BOTH = pytest.mark.parametrize("optimizer_type", [memtide.AdamW, memtide.Lion])


def gradient(step: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(40, generator=torch.Generator().manual_seed(step)).to(dtype)


def first(dtype: torch.dtype) -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(99)
    return torch.nn.Parameter(torch.randn(40, generator=generator).to(dtype))


def train(optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> torch.Tensor:
    """The optimizer's only parameter after `steps`; gradients depend on the step's number only."""
    (parameter,) = optimizer.param_groups[0]["params"]
    for step in steps:
        parameter.grad = gradient(step, parameter.dtype)
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("maximize", [False, True])
def test_wide_parameters_are_stepped_as_by_torch(dtype: torch.dtype, maximize: bool) -> None:
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
    torch_optimizer = torch.optim.AdamW([first(dtype)], **options, maximize=maximize, foreach=False)
    optimizer = memtide.AdamW([first(dtype)], **options, maximize=maximize)
    tolerance = 0 if dtype is torch.float32 else 1e-7  # Moments are fp32.
    torch.testing.assert_close(
        train(optimizer), train(torch_optimizer), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_master_is_stepped_as_torch_steps_fp32(dtype: torch.dtype) -> None:
    parameter = first(dtype)
    wide = torch.nn.Parameter(parameter.detach().float())
    optimizer = memtide.AdamW([parameter], lr=0.01)
    torch_optimizer = torch.optim.AdamW([wide], lr=0.01, foreach=False)
    for step in range(STEPS):
        parameter.grad = gradient(step, dtype)
        wide.grad = parameter.grad.float()
        optimizer.step()
        torch_optimizer.step()
        assert torch.equal(optimizer.state[parameter]["master"], wide)
        assert torch.equal(parameter, wide.to(dtype)), "the parameter is its master, rounded"


@BOTH
def test_small_steps_are_lost_only_to_nearest(optimizer_type: Any) -> None:
    ways = {}
    for weights in ("master", "stochastic", "nearest"):
        parameter = torch.nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
        optimizer = optimizer_type([parameter], lr=1e-4, weight_decay=0, weights=weights)
        for _ in range(100):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        ways[weights] = 1 - parameter.detach().float().mean().item()
    assert ways["nearest"] == 0
    assert ways["master"] == pytest.approx(0.01, abs=2**-9)
    assert ways["stochastic"] == pytest.approx(0.01, rel=0.05)


@BOTH
def test_a_group_may_hold_both_widths_and_groups_may_differ(optimizer_type: Any) -> None:
    half, wide, chance = first(torch.bfloat16), first(torch.float32), first(torch.bfloat16)
    groups = [
        {"params": [half, wide]},
        {"params": [chance], "weights": "stochastic", "moments": torch.bfloat16},
    ]
    optimizer = optimizer_type(groups, lr=0.01)
    for parameter in (half, wide, chance):
        parameter.grad = gradient(1, parameter.dtype)
    optimizer.step()
    assert optimizer.state[half]["master"].dtype is torch.float32
    assert optimizer.state[half]["exp_avg"].dtype is torch.float32
    assert "master" not in optimizer.state[wide]
    assert "master" not in optimizer.state[chance]
    assert optimizer.state[chance]["exp_avg"].dtype is torch.bfloat16


@BOTH
def test_chances_do_not_depend_on_which_gradients_are_there(optimizer_type: Any) -> None:
    def stepped(*, both: bool) -> torch.Tensor:
        parameters = [first(torch.bfloat16), first(torch.bfloat16)]
        optimizer = optimizer_type(parameters, lr=1e-3, weights="stochastic")
        for parameter in parameters[not both :]:
            parameter.grad = gradient(1, parameter.dtype)
        optimizer.step()
        return parameters[1].detach()

    assert torch.equal(stepped(both=True), stepped(both=False))


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": "stochastic"}, {"moments": torch.bfloat16}],
    ids=["master", "stochastic", "bf16 moments"],
)
@BOTH
def test_a_saved_state_goes_on_to_the_same_bits(
    optimizer_type: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    whole = optimizer_type([first(torch.bfloat16)], lr=1e-3, **options)
    expected = train(whole, range(2 * STEPS))
    begun = optimizer_type([first(torch.bfloat16)], lr=1e-3, **options)
    parameter = torch.nn.Parameter(train(begun).clone())
    torch.save(begun.state_dict(), tmp_path / "state")
    again = optimizer_type([parameter])
    again.load_state_dict(torch.load(tmp_path / "state"))
    for name, value in begun.state_dict()["state"][0].items():
        loaded = again.state[parameter][name]
        assert (loaded.dtype, loaded.tolist()) == (value.dtype, value.tolist())
        assert loaded.data_ptr() != value.data_ptr()
    assert torch.equal(train(again, range(STEPS, 2 * STEPS)), expected)


def test_it_takes_closures_and_schedules() -> None:
    model = torch.nn.Linear(4, 4).bfloat16()
    optimizer = memtide.AdamW(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4, dtype=torch.bfloat16)).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > optimizer.step(closure).item() + 4
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"weight_decay": math.inf},
        {"weight_decay": -0.1},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"weights": "masters"},
        {"moments": torch.float16},
    ],
)
@BOTH
def test_what_makes_no_sense_is_refused(optimizer_type: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=optimizer_type.__name__):
        optimizer_type([torch.nn.Parameter(torch.zeros(1))], **wrong)


def test_an_infinite_eps_is_refused() -> None:
    with pytest.raises(ValueError, match="eps of AdamW is inf"):
        memtide.AdamW([first(torch.float32)], eps=math.inf)


@BOTH
def test_a_group_that_cannot_be_is_refused_and_not_kept(optimizer_type: Any) -> None:
    optimizer = optimizer_type([first(torch.bfloat16)], weights="stochastic")
    with pytest.raises(ValueError, match="float16"):
        optimizer.add_param_group({"params": [first(torch.float16)]})
    with pytest.raises(ValueError, match="complex64"):
        optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]}
        )
    assert len(optimizer.param_groups) == 1


@BOTH
def test_sparse_gradients_are_refused(optimizer_type: Any) -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = optimizer_type(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
