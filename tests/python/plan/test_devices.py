"""Ways of using several devices: their times and bytes follow from their definitions, none is
faster than the bound, and the choice is the fastest that fits with the losses of one device."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from memtide._plan_file.machine import Device, Drive, Machine
from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import States, Training
from memtide_plan import rows
from memtide_plan.check import estimates
from memtide_plan.devices.best import SYSTEMS, as_planned, best, bound_s
from memtide_plan.devices.device_strategies import DeviceStrategy
from memtide_plan.devices.pipelines import Pipelines
from memtide_plan.estimate.work import Rates, work_of
from memtide_plan.row_inputs import inputs_of
from memtide_plan.row_results import predict

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


_STAGES = ("replicas", "zero-1", "zero-2", "zero-3")


def _strategy(name: str, machine: Machine, training: Training = _TRAINING) -> DeviceStrategy:
    return as_planned(name, _model(), training, machine)


def test_each_stage_of_zero_divides_one_more_state() -> None:
    model, states = _model(), _TRAINING.states
    training = replace(_TRAINING, micro_batch=1)
    held = [_strategy(name, _machine(4, memory=200e9), training).device_bytes for name in _STAGES]
    parameters, widest = model.parameters(), model.blocks[0].parameters
    differences = [before - after for before, after in zip(held, held[1:], strict=False)]
    assert differences == [
        pytest.approx(0.75 * parameters * states.optimizer),
        pytest.approx(0.75 * parameters * states.gradient),
        pytest.approx((0.75 * parameters - 2 * widest) * states.weight),
    ]


def test_stages_exchange_what_their_definition_says() -> None:
    model, states = _model(), _TRAINING.states
    training = replace(_TRAINING, micro_batch=2)  # Four of them for each of four devices.
    share_s = 0.75 * model.parameters() / 200e9
    weights_s, gradients_s = share_s * states.weight, share_s * states.gradient
    exchanged = [_strategy(name, _machine(4), training).exchange_s for name in _STAGES]
    assert exchanged == [
        pytest.approx(2 * gradients_s),
        pytest.approx(gradients_s + weights_s),
        pytest.approx(4 * gradients_s + weights_s),
        pytest.approx(4 * (gradients_s + 2 * weights_s)),
    ]


def test_gradients_that_stay_whole_are_summed_in_the_last_backward_pass_alone() -> None:
    # Links so slow that exchanges decide, and batches of one micro-batch and of four.
    machine = _machine(4, between=1e9)
    one, four = (
        _strategy("replicas", machine, replace(_TRAINING, batch=batch, micro_batch=2))
        for batch in (8, 32)
    )
    rates = Rates.of(machine.device, _TRAINING.compute_type)
    (work,) = work_of(_model(), _TRAINING, rates, 2)
    assert one.step_s is not None
    assert four.step_s is not None
    passes_s = 16 * (work.forward_s + work.backward_s)
    assert four.step_s - one.step_s == pytest.approx(3 * passes_s, rel=1e-6)


def test_devices_offload_their_shards_and_gather_new_weights() -> None:
    model, states = _model(), _TRAINING.states
    training = replace(_TRAINING, micro_batch=8)  # One for each device.
    strategy = _strategy("zero-2 offload", _machine(4), training)
    size = model.parameters()
    assert strategy.host_bytes == size * (states.gradient + states.optimizer)
    # Gradients are summed, and weights gathered, on links between devices.
    exchanged = 0.75 * size * (states.gradient + states.weight)
    assert strategy.exchange_s == pytest.approx(exchanged / 200e9)
    assert "weights on devices; gradients and moments in host memory" in strategy.detail
    assert "optimizer on the host" in strategy.detail
    # Where the host's memory costs nothing, the links to devices decide: each has a quarter.
    free = replace(_machine(4), host_memory_bytes_per_s=1e18)
    slow = replace(free, to_device_bytes_per_s=1e9)
    with_slow, with_fast = (
        _strategy("zero-2 offload", each, training).step_s for each in (slow, free)
    )
    assert with_slow is not None
    assert with_fast is not None
    quarter = size * 4.0 / 4  # In float32.
    assert with_slow - with_fast == pytest.approx(quarter / 1e9 - quarter / 25e9)


_DRIVE = Drive(read_bytes_per_s=6e9, write_bytes_per_s=5e9, size_bytes=4e12)


def test_each_way_farther_from_the_device_needs_less_before_it_and_takes_longer() -> None:
    machine = replace(_machine(4), drive=_DRIVE)
    names = list(SYSTEMS)[5:]
    strategies = [_strategy(name, machine) for name in names]
    times = [strategy.step_s for strategy in strategies if strategy.step_s is not None]
    assert len(times) == 5
    assert times[0] < min(times[1:])
    assert max(times[1:3]) < times[3] < times[4]
    assert strategies[3].host_bytes == _model().parameters() * _TRAINING.states.weight
    assert strategies[4].host_bytes == 0
    assert "weights in host memory; gradients and moments on drives" in strategies[3].detail
    assert "all states on drives" in strategies[4].detail


def test_states_without_room_say_which_room_they_lack() -> None:
    without = _machine(4)
    small = replace(without, drive=replace(_DRIVE, size_bytes=1e9))
    for machine, had in ((without, "0 B"), (small, "954 MiB")):
        strategy = _strategy("zero-infinity", machine)
        assert not strategy.fits
        assert strategy.step_s is None
        assert strategy.limit.startswith("It does not fit: room on drives of at least")
        assert f"{had} can be had" in strategy.limit
    little = _strategy("zero-2 offload", replace(without, host_memory_bytes=16e9))
    assert "host memory of at least" in little.limit


def test_steps_on_drives_move_what_the_optimizer_has() -> None:
    machine = replace(_machine(4), drive=_DRIVE)
    training = replace(_TRAINING, micro_batch=8)
    small = replace(training, states=States(optimizer=4.0))
    many, few = (_strategy("zero-infinity", machine, each).step_s for each in (training, small))
    assert many is not None
    assert few is not None
    # Drives read and write at once, and reading, of gradients too, takes longer.
    assert many - few == pytest.approx(_model().parameters() * 8.0 / 6e9)


def test_ways_are_those_that_the_check_holds_to_what_others_measured() -> None:
    held = {row.system: row for row in rows.load() if row.figure.kind == "step_s" and row.model}
    found = 0
    for name, system in SYSTEMS.items():
        row = held.get({"zero-infinity": "deepspeed-nvme"}.get(system, system))
        if row is None:
            continue
        found += 1
        inputs = inputs_of(row)
        strategy = as_planned(name, inputs.model, inputs.training, inputs.machine)
        (result,) = predict([row], estimates)
        assert result.ours is not None
        assert strategy.step_s == pytest.approx(result.ours)
    assert found >= 3


def test_what_does_not_fit_says_what_a_device_needs() -> None:
    strategy = _strategy("replicas", _machine(4, memory=8e9))
    assert not strategy.fits
    assert strategy.step_s is None
    assert strategy.limit.startswith("It does not fit: device memory of at least")
    assert strategy.device_bytes is not None
    # With as many bytes it fits, and with a little less it does not.
    assert _strategy("replicas", _machine(4, memory=strategy.device_bytes + 1)).fits
    assert not _strategy("replicas", _machine(4, memory=strategy.device_bytes - 2)).fits


def test_a_flush_costs_the_stages_of_a_pipeline_but_one() -> None:
    machine = _machine(4, between=1e15)
    training = replace(_TRAINING, micro_batch=1)
    rates = Rates.of(machine.device, training.compute_type)
    (work,) = work_of(_model(), training, rates, 1)
    stage_s = 4 * (work.forward_s + work.backward_s)  # Four of sixteen layers.
    pipelines = Pipelines(model=_model(), training=training, machine=machine)
    flushed, delayed = (pipelines.strategy(name, beside=False) for name in ("1f1b", "2bw"))
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
    strategy = Pipelines(model=_model(), training=_TRAINING, machine=_machine(4)).strategy(
        "1f1b", beside=True
    )
    assert "width 2 x depth 2" in strategy.detail
    few = Pipelines(model=_model(), training=_TRAINING, machine=_machine(2)).strategy(
        "1f1b", beside=True
    )
    assert not few.fits
    assert few.limit == "It needs 4 devices at least, and there are 2."


def test_a_pipeline_that_does_not_fit_says_what_a_device_needs() -> None:
    small = Pipelines(model=_model(), training=_TRAINING, machine=_machine(4, memory=4e9))
    strategy = small.strategy("1f1b", beside=False)
    assert not strategy.fits
    # States of four of sixteen layers, and activations of one micro-batch of one sequence.
    states = _model().parameters() / 4 * _TRAINING.states.trained()
    needed = re.search(r"device memory of at least ([\d.]+) GiB would be needed", strategy.limit)
    assert needed is not None
    assert states / 2**30 < float(needed[1]) < 1.3 * states / 2**30


def test_the_choice_is_the_fastest_that_fits_and_no_way_is_below_the_bound() -> None:
    machine = _machine(4)
    plan = best(_model(), _TRAINING, machine)
    names = {strategy.name for strategy in plan.strategies}
    assert {*SYSTEMS, "pipeline 1f1b", "pipeline 2bw"} <= names
    times = [strategy.step_s for strategy in plan.strategies if strategy.step_s is not None]
    assert times == sorted(times)
    # Rounding of times in whole nanoseconds.
    assert all(time >= plan.bound_s * (1 - 1e-6) for time in times)
    assert plan.bound_s == pytest.approx(4 * bound_s(_model(), _TRAINING, _machine(16)))
    same = [strategy for strategy in plan.strategies if strategy.fits and strategy.same_losses]
    assert plan.choice is same[0]
    assert json.loads(json.dumps(plan.as_json()))["choice"] == plan.choice.name
    lines = plan.lines()
    assert len(lines) == 1 + len(plan.strategies)
    assert [line for line in lines if "<- chosen" in line][0].startswith(f"  {plan.choice.name}:")


def test_one_device_is_compared_with_none() -> None:
    plan = best(_model(), _TRAINING, _machine(1))
    assert [strategy.name for strategy in plan.strategies] == ["one device"]
