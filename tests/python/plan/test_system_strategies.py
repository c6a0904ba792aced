"""Estimates of other systems, which place states and passes as they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from estimated_training import (
    DRIVE,
    GIB,
    LAYERS,
    MACHINE,
    MODEL,
    TRAINING,
    seconds,
    with_pool,
)
from memtide._plan_file.training import Training
from memtide.errors import InvalidArgument
from memtide_plan.calibration import constant
from memtide_plan.estimate import estimate
from memtide_plan.estimate.phases import Part, Phases


def test_a_system_with_slower_kernels_computes_longer() -> None:
    others = estimate(MODEL, TRAINING, with_pool(80), system="dataflow")
    own = estimate(MODEL, TRAINING, with_pool(80), system="flextrain")
    share = constant("kernels.flextrain")
    assert 1 < seconds(own) / seconds(others) <= 1 / share


def test_a_step_on_the_host_shares_its_memory_with_drives() -> None:
    machine = replace(MACHINE, drive=replace(DRIVE, read_bytes_per_s=1e12, write_bytes_per_s=1e12))
    near = estimate(MODEL, TRAINING, machine, system="patrickstar")
    far = estimate(MODEL, TRAINING, machine, system="zero-infinity")
    assert near.busy is not None and far.busy is not None
    # It reads 16 bytes of the drive for each parameter, and writes 12.
    more = far.busy.optimizer - near.busy.optimizer
    assert more == pytest.approx(28 * MODEL.parameters() / 60e9)


def test_collectives_take_their_time_beside_products() -> None:
    linked = replace(with_pool(80), devices=4, between_devices_bytes_per_s=1e9)
    training = replace(TRAINING, batch=128)
    answer = estimate(MODEL, training, linked, system="fsdp")
    assert answer.busy is not None
    parts = answer.busy.compute + answer.busy.exchange + answer.busy.optimizer
    assert seconds(answer) == pytest.approx(parts)


def test_a_float32_master_is_gathered_in_the_type_that_computes() -> None:
    linked = replace(with_pool(80), devices=4, between_devices_bytes_per_s=1e9)
    exchanged = []
    for weight in (2, 4):
        states = replace(TRAINING.states, weight=weight)
        answer = estimate(MODEL, replace(TRAINING, states=states), linked, system="fsdp")
        assert answer.busy is not None
        exchanged.append(answer.busy.exchange)
    assert exchanged[0] == exchanged[1]


def device_bytes(system: str, training: Training) -> int:
    answer = estimate(MODEL, training, with_pool(80), system=system)
    assert answer.choice is not None
    return answer.choice.device_pool_bytes


def test_gradients_and_activations_are_not_all_there_at_once() -> None:
    training = replace(TRAINING, batch=8, activations="recompute")
    whole = device_bytes("resident", training)
    states, trained = TRAINING.states, MODEL.trained_parameters()
    layer = MODEL.blocks[1]
    tokens = 8 * 1024
    # As the pass ends: all gradients, and one layer's activations with their gradients.
    one = (1 + constant("transient_share")) * layer.saved_bytes_per_token() * tokens
    assert whole == pytest.approx(trained * states.trained() + one)
    # With a second micro-batch, the first one's sums are there as the next one begins.
    inputs = LAYERS * layer.input_bytes_per_token * tokens
    again = device_bytes("resident", replace(training, batch=16))
    assert again == pytest.approx(trained * states.trained() + one + inputs)


def test_a_step_within_the_backward_pass_has_the_gradients_of_one_block() -> None:
    training = replace(TRAINING, batch=8, activations="recompute")
    fused = replace(training, states=replace(TRAINING.states, gradient=0))
    saved = device_bytes("resident", training) - device_bytes("resident", fused)
    layer = MODEL.blocks[1]
    inputs = LAYERS * layer.input_bytes_per_token * 8 * 1024
    others = MODEL.trained_parameters() - max(b.trained_parameters for b in MODEL.blocks)
    assert saved == pytest.approx(2 * others - inputs)
    # The layers' inputs are on the host, so the step has less on the device by their size.
    moved = device_bytes("activation-offload", fused)
    assert device_bytes("resident", fused) - moved == pytest.approx(inputs)


def test_weights_that_are_cast_on_the_device_are_there_in_float32() -> None:
    training = replace(TRAINING, batch=1, micro_batch=1, activations="recompute")
    answer = estimate(MODEL, training, with_pool(80), system="zero-offload")
    assert answer.choice is not None and answer.busy is not None
    assert answer.choice.device_pool_bytes == pytest.approx(6 * MODEL.parameters())
    # They leave for it once the update is done.
    update = 32 * MODEL.parameters() / 60e9 + 4 * MODEL.parameters() / 20e9
    assert answer.busy.optimizer == pytest.approx(update)


def test_forward_passes_again_are_whole_and_bring_their_weights_again() -> None:
    training = replace(TRAINING, activations="recompute")
    once = estimate(MODEL, training, with_pool(80), system="resident").busy
    whole = estimate(MODEL, training, with_pool(80), system="resident-reentrant").busy
    assert once is not None and whole is not None
    assert whole.recompute > 1.1 * once.recompute
    twice = estimate(MODEL, training, with_pool(80), system="megatrain").busy
    assert twice is not None
    assert twice.recompute == pytest.approx(2 * whole.recompute)
    accumulation = TRAINING.batch // 8
    assert twice.to_device == pytest.approx(accumulation * 3 * 2 * MODEL.parameters() / 20e9)


def test_the_last_group_of_a_step_in_the_backward_pass_comes_after_it() -> None:
    stages = Part(compute=6.0, drive_read=2.0, optimizer=8.0, drive_written=4.0)
    made = Phases(
        forward=Part(compute=3.0),
        backward=stages,
        step=Part(),
        recompute_s=0.0,
        summed=Part(),
        accumulation=1,
        step_in_backward=True,
    )
    assert made.seconds() == 3 + 8
    # With twelve groups, the slowest stage waits for the first, and the others have the last.
    assert replace(made, groups=12).seconds() == 3 + 8 + (6 + 2 + 4) / 12


def test_chunks_for_which_the_host_has_no_room_are_on_devices() -> None:
    training = replace(TRAINING, activations="recompute")
    small = replace(with_pool(80), host_memory_bytes=8 * GIB)
    assert not estimate(MODEL, training, small, system="gemini").fits
    answer = estimate(MODEL, training, small, system="patrickstar")
    ample = estimate(MODEL, training, with_pool(80), system="patrickstar")
    assert answer.choice is not None and ample.choice is not None
    missing = ample.choice.host_pool_bytes - answer.choice.host_pool_bytes
    assert missing > 0
    more = answer.choice.device_pool_bytes - ample.choice.device_pool_bytes
    assert more == pytest.approx(missing)


def test_phases_are_less_sure_than_the_engine() -> None:
    sure = replace(with_pool(80), uncertainty=0.0)
    widths = []
    for system in ("memtide", "resident"):
        answer = estimate(MODEL, TRAINING, sure, system=system)
        assert answer.high_s is not None
        widths.append(answer.high_s / seconds(answer) - 1)
    assert widths[0] == pytest.approx(constant("simulator_error.engine"))
    assert widths[1] == pytest.approx(constant("simulator_error.phases"))


@pytest.mark.parametrize(
    ("system", "slower"),
    [("zero-offload", "resident"), ("zero-infinity", "zero-offload"), ("fuyou", "resident")],
)
def test_systems_with_states_farther_away_are_slower(system: str, slower: str) -> None:
    machine = replace(with_pool(80), drive=DRIVE)
    near = estimate(MODEL, TRAINING, machine, system=slower)
    far = estimate(MODEL, TRAINING, machine, system=system)
    assert seconds(far) > seconds(near)


def test_mlp_offload_saves_the_gradients_way_to_the_drive_and_back() -> None:
    machine = replace(MACHINE, drive=DRIVE)
    zero = estimate(MODEL, TRAINING, machine, system="zero-infinity")
    mlp = estimate(MODEL, TRAINING, machine, system="mlp-offload")
    assert zero.moved_bytes.drive_written - mlp.moved_bytes.drive_written == pytest.approx(
        4 * 4 * MODEL.parameters()  # Bytes, in each of four micro-batches.
    )
    assert seconds(mlp) < seconds(zero)


def test_an_unknown_system_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match="memtide"):
        estimate(MODEL, TRAINING, MACHINE, system="abacus")
