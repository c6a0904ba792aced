"""Ways of using several devices: their times and bytes follow from their definitions, none is
faster than the bound, and the choice is the fastest that fits with the losses of one device."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from memtide._plan.devices.best import best, bound_s
from memtide._plan.devices.pipelines import Pipelines
from memtide._plan.devices.shards import STAGES, Sharded
from memtide._plan.estimate import estimate
from memtide._plan.estimate.work import Rates, work_of
from memtide._plan.machine import Device, Machine
from memtide._plan.model import Block, Model
from memtide._plan.training import Training

_WIDTH = 2048


def _model(layers: int = 16) -> Model:
    parameters = 12 * _WIDTH**2
    layer = Block(
        name="layer",
        count=layers,
        parameters=parameters,
        trained_parameters=parameters,
        flop_per_token=2.0 * parameters,
        flop_per_token_pair=4.0 * _WIDTH,
        input_bytes_per_token=2.0 * _WIDTH,
        attention_bytes_per_token=2.0 * _WIDTH,
        rest_bytes_per_token=24.0 * _WIDTH,
    )
    return Model(name="even", blocks=(layer,))


def _machine(devices: int, *, memory: float = 80e9, between: float | None = 200e9) -> Machine:
    device = Device(
        name="device",
        memory_bytes=memory,
        flop_per_s={"bfloat16": 400e12},
        memory_bytes_per_s=2e12,
    )
    return Machine(
        name="machine",
        device=device,
        devices=devices,
        to_device_bytes_per_s=25e9,
        from_device_bytes_per_s=25e9,
        between_devices_bytes_per_s=between,
        host_memory_bytes=512e9,
        host_memory_bytes_per_s=100e9,
    )


_TRAINING = Training(batch=32, sequence=1024)


def _sharded(machine: Machine, training: Training = _TRAINING) -> Sharded:
    return Sharded(model=_model(), training=training, machine=machine)


def test_each_stage_of_zero_divides_one_more_state() -> None:
    model, states = _model(), _TRAINING.states
    held = [_sharded(_machine(4)).way(stage).device_bytes for stage in STAGES]
    parameters, widest = model.parameters(), model.blocks[0].parameters
    differences = [before - after for before, after in zip(held, held[1:], strict=False)]
    assert differences == [
        pytest.approx(0.75 * parameters * states.optimizer),
        pytest.approx((0.75 * parameters - widest) * states.gradient),
        pytest.approx((0.75 * parameters - 2 * widest) * states.weight),
    ]


def test_stages_exchange_what_their_definition_says() -> None:
    model, states = _model(), _TRAINING.states
    training = replace(_TRAINING, micro_batch=2)  # Four of them for each of four devices.
    share_s = 0.75 * model.parameters() / 200e9
    weights_s, gradients_s = share_s * states.weight, share_s * states.gradient
    exchanged = [_sharded(_machine(4), training).way(stage).exchange_s for stage in STAGES]
    assert exchanged == [
        pytest.approx(2 * gradients_s),
        pytest.approx(gradients_s + weights_s),
        pytest.approx(4 * gradients_s + weights_s),
        pytest.approx(4 * (gradients_s + 2 * weights_s)),
    ]


@pytest.mark.parametrize(("stage", "system"), [(0, "ddp"), (3, "fsdp")])
def test_whole_and_sharded_states_take_what_the_estimate_has_for_them(
    stage: int, system: str
) -> None:
    for between in (200e9, 20e9):
        machine = _machine(4, between=between)
        training = replace(_TRAINING, micro_batch=8)
        way = _sharded(machine, training).way(stage)
        answer = estimate(_model(), training, machine, system=system)
        assert answer.step_s is not None
        assert way.step_s == pytest.approx(answer.step_s, rel=1e-6)


def test_what_does_not_fit_says_what_a_device_needs() -> None:
    way = _sharded(_machine(4, memory=8e9)).way(0)
    assert not way.fits
    assert way.step_s is None
    assert "A device needs" in way.limit
    assert way.device_bytes is not None
    # With as many bytes it fits, and with a little less it does not.
    enough = way.device_bytes + (8e9 - _pool(_machine(4, memory=8e9)))
    assert _sharded(_machine(4, memory=enough + 1)).way(0).fits
    assert not _sharded(_machine(4, memory=enough - 2)).way(0).fits


def _pool(machine: Machine) -> float:
    from memtide._plan.estimate.pools import device_pool

    return device_pool(machine)


def test_a_flush_costs_the_stages_of_a_pipeline_but_one() -> None:
    machine = _machine(4, between=1e15)
    training = replace(_TRAINING, micro_batch=1)
    rates = Rates.of(machine.device, training.compute_type)
    (work,) = work_of(_model(), training, rates, 1)
    stage_s = 4 * (work.forward_s + work.backward_s)  # Four of sixteen layers.
    pipelines = Pipelines(model=_model(), training=training, machine=machine)
    flushed, delayed = (pipelines.way(name, beside=False) for name in ("1f1b", "2bw"))
    assert flushed.step_s is not None
    assert delayed.step_s is not None
    assert flushed.step_s - delayed.step_s == pytest.approx(3 * stage_s, rel=1e-3)
    assert flushed.same_losses
    assert not delayed.same_losses
    weights = 4 * _model().blocks[0].parameters * training.states.weight
    assert flushed.device_bytes is not None
    assert delayed.device_bytes is not None
    assert delayed.device_bytes - flushed.device_bytes == pytest.approx(weights, rel=1e-3)


def test_pipelines_beside_each_other_divide_the_devices() -> None:
    way = Pipelines(model=_model(), training=_TRAINING, machine=_machine(4)).way(
        "1f1b", beside=True
    )
    assert "width 2 x depth 2" in way.detail
    few = Pipelines(model=_model(), training=_TRAINING, machine=_machine(2)).way(
        "1f1b", beside=True
    )
    assert not few.fits
    assert "too few" in few.limit


def test_a_pipeline_that_does_not_fit_says_what_a_device_needs() -> None:
    small = Pipelines(model=_model(), training=_TRAINING, machine=_machine(4, memory=4e9))
    way = small.way("1f1b", beside=False)
    assert not way.fits
    # States of four of sixteen layers, and activations of one micro-batch of one sequence.
    states = _model().parameters() / 4 * _TRAINING.states.trained()
    needed = re.fullmatch(r"A device needs ([\d.]+) GiB at least, and .* can be had\.", way.limit)
    assert needed is not None
    assert states / 2**30 < float(needed[1]) < 1.3 * states / 2**30


def test_the_choice_is_the_fastest_that_fits_and_no_way_is_below_the_bound() -> None:
    machine = _machine(4)
    plan = best(_model(), _TRAINING, machine)
    names = {way.name for way in plan.ways}
    assert {"one device", "shared on the host", "replicas", "zero-3", "pipeline 2bw"} <= names
    times = [way.step_s for way in plan.ways if way.step_s is not None]
    assert times == sorted(times)
    # Rounding of times in whole nanoseconds.
    assert all(time >= plan.bound_s * (1 - 1e-6) for time in times)
    assert plan.bound_s == pytest.approx(4 * bound_s(_model(), _TRAINING, _machine(16)))
    same = [way for way in plan.ways if way.fits and way.same_losses]
    assert plan.choice is same[0]
    assert json.loads(json.dumps(plan.as_json()))["choice"] == plan.choice.name
    lines = plan.lines()
    assert len(lines) == 1 + len(plan.ways)
    assert [line for line in lines if "<- chosen" in line][0].startswith(f"  {plan.choice.name}:")


def test_one_device_is_compared_with_none() -> None:
    plan = best(_model(), _TRAINING, _machine(1))
    assert [way.name for way in plan.ways] == ["one device"]
