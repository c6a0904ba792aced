"""memtide_plan.estimate: what a step takes follows from the machine, and what does not fit is
said with the resource that lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from estimated_training import (
    DEVICE,
    DRIVE,
    GIB,
    LAYER,
    LAYERS,
    MACHINE,
    MODEL,
    TRAINING,
    WIDTH,
    WORDS,
    seconds,
    with_pool,
)
from memtide._plan_file.training import States
from memtide.errors import InvalidArgument
from memtide_plan.estimate import estimate, estimate_all
from memtide_plan.estimate.sweep_interpolation import chosen_of_many, is_between
from memtide_plan.estimate.system_strategies import strategy_of
from memtide_plan.estimate.trials import trials_of


def test_the_same_question_has_the_same_answer() -> None:
    assert estimate(MODEL, TRAINING, MACHINE) == estimate(MODEL, TRAINING, MACHINE)


def test_more_device_memory_is_no_slower() -> None:
    times = [seconds(estimate(MODEL, TRAINING, with_pool(gib))) for gib in (3, 6, 12, 40)]
    for less, more in zip(times, times[1:], strict=False):
        assert more < less * 1.01
    assert times[-1] < times[0] * 0.9


def test_where_all_fits_a_step_takes_what_it_computes() -> None:
    answer = estimate(MODEL, TRAINING, with_pool(80))
    assert answer.busy is not None
    assert answer.busy.recompute == 0
    assert answer.busy.waits < 0.01 * seconds(answer)
    # Six operations for each parameter of a product and token, at the reached rate, are most of it.
    matrices = LAYERS * LAYER + WORDS * WIDTH
    least = 6 * matrices * TRAINING.tokens() / (200e12 * 0.6)
    assert least < seconds(answer) < 1.6 * least


def test_faster_links_and_faster_products_make_steps_faster() -> None:
    slow = seconds(estimate(MODEL, TRAINING, with_pool(3)))
    fast_links = replace(with_pool(3), to_device_bytes_per_s=60e9, from_device_bytes_per_s=60e9)
    assert seconds(estimate(MODEL, TRAINING, fast_links)) < 0.98 * slow
    card = replace(with_pool(3).device, reached_flop=0.9)
    assert seconds(estimate(MODEL, TRAINING, replace(MACHINE, device=card))) < 0.98 * slow


def test_many_micro_batches_take_as_long_as_their_number() -> None:
    four = estimate(MODEL, TRAINING, MACHINE)
    eight = estimate(MODEL, replace(TRAINING, batch=64), MACHINE)
    assert four.choice is not None and four.choice.accumulation == 4
    assert eight.choice is not None and eight.choice.accumulation == 8
    assert 1.7 < seconds(eight) / seconds(four) < 2.02


def test_the_device_that_lacks_memory_is_named_with_what_would_do() -> None:
    answer = estimate(MODEL, TRAINING, with_pool(0.5))
    assert not answer.fits and answer.step_s is None
    assert "device memory" in answer.limit
    least = answer.least_device_bytes - (DEVICE.memory_bytes - 0.5 * GIB)
    assert estimate(MODEL, TRAINING, with_pool(1.5 * least / GIB)).fits


def test_the_host_that_lacks_memory_is_named_and_a_drive_helps() -> None:
    small = replace(MACHINE, host_memory_bytes=16 * GIB)
    without = estimate(MODEL, TRAINING, small)
    assert not without.fits
    assert "host memory" in without.limit
    answer = estimate(MODEL, TRAINING, replace(small, drive=DRIVE))
    assert answer.fits
    assert answer.moved_bytes.drive_written > 0
    assert answer.drive_years is not None and answer.drive_years > 0
    assert seconds(answer) > seconds(estimate(MODEL, TRAINING, MACHINE))


def test_a_micro_batch_is_chosen_where_none_is_given() -> None:
    machine = with_pool(12)
    answer = estimate(MODEL, replace(TRAINING, micro_batch=None), machine)
    assert answer.choice is not None
    assert answer.choice.micro_batch * answer.choice.accumulation == TRAINING.batch
    assert seconds(answer) <= 1.02 * seconds(estimate(MODEL, TRAINING, machine))


def test_what_activations_do_can_be_fixed() -> None:
    answer = estimate(MODEL, replace(TRAINING, activations="recompute"), with_pool(80))
    assert answer.choice is not None and answer.busy is not None
    # The last layer keeps: its backward pass comes next.
    assert answer.choice.activations.count("recompute") == LAYERS - 1
    assert answer.busy.recompute > 0
    free = estimate(MODEL, TRAINING, with_pool(80))
    assert seconds(answer) > 1.1 * seconds(free)


@pytest.mark.parametrize(("micro_batch", "gib"), [(8, 3), (None, 0.9)])
def test_activations_that_cannot_be_kept_are_a_limit(micro_batch: int | None, gib: float) -> None:
    keeping = replace(TRAINING, activations="keep", micro_batch=micro_batch)
    answer = estimate(MODEL, keeping, with_pool(gib))
    assert not answer.fits and answer.step_s is None
    assert "device memory in which activations are kept" in answer.limit
    # The device memory that the answer says would do does, and so does a choice that keeps less.
    enough = replace(DEVICE, memory_bytes=answer.least_device_bytes, pool_bytes=None)
    assert estimate(MODEL, keeping, replace(MACHINE, device=enough)).fits
    assert estimate(MODEL, replace(keeping, activations="recompute"), with_pool(3)).fits


def test_devices_sum_their_gradients_on_links_between_them_or_to_the_host() -> None:
    two = replace(with_pool(40), devices=2, between_devices_bytes_per_s=100e9)
    near = estimate(MODEL, TRAINING, two)
    # A ring of two passes each gradient once, which has two bytes.
    assert near.busy is not None
    assert near.busy.exchange == pytest.approx(2 * MODEL.parameters() / 100e9)
    far = estimate(MODEL, TRAINING, replace(two, between_devices_bytes_per_s=None))
    assert far.busy is not None
    assert far.busy.exchange == pytest.approx(2 * MODEL.parameters() / 20e9)
    slow = estimate(MODEL, TRAINING, replace(two, between_devices_bytes_per_s=1e8))
    assert seconds(slow) == pytest.approx(2 * MODEL.parameters() / 1e8)
    assert seconds(slow) > seconds(near)
    alone = estimate(MODEL, TRAINING, with_pool(40))
    assert alone.busy is not None and alone.busy.exchange == 0


def test_devices_share_the_room_for_what_they_move_to_the_host() -> None:
    one, four = (
        trials_of(MODEL, TRAINING, replace(MACHINE, devices=devices), strategy_of("memtide"))[0]
        for devices in (1, 4)
    )
    states = 16 * MODEL.parameters()
    room = [trial.questions()[0]["host_bytes"] - states for trial in (one, four)]
    assert room[0] == pytest.approx(one.pools.host - states)
    assert room[1] == pytest.approx((four.pools.host - states) / 4)


def test_limits_of_small_models_are_no_zeros() -> None:
    small = replace(MODEL, blocks=tuple(replace(b, count=1) for b in MODEL.blocks[:1]))
    answer = estimate(small, replace(TRAINING, batch=1), with_pool(2**-10))
    assert not answer.fits
    assert " 1.00 MiB can be had" in answer.limit


def test_the_interval_is_as_wide_as_the_machine_is_unsure() -> None:
    answer = estimate(MODEL, TRAINING, replace(MACHINE, uncertainty=0.2))
    surer = estimate(MODEL, TRAINING, replace(MACHINE, uncertainty=0.02))
    assert answer.low_s is not None and answer.high_s is not None
    assert surer.low_s is not None and surer.high_s is not None
    assert answer.low_s < surer.low_s < seconds(answer) < surer.high_s < answer.high_s


def test_an_optimizer_on_the_host_waits_for_host_memory() -> None:
    on_host = replace(TRAINING, optimizer_on="host")
    slow = estimate(MODEL, on_host, replace(MACHINE, host_memory_bytes_per_s=10e9))
    assert slow.busy is not None
    # It reads and writes weights and states, and reads gradients: 30 bytes a parameter.
    assert slow.busy.optimizer == pytest.approx(30 * MODEL.parameters() / 10e9, rel=0.01)
    fast = estimate(MODEL, on_host, replace(MACHINE, host_memory_bytes_per_s=100e9))
    assert seconds(slow) - seconds(fast) > 0.8 * (slow.busy.optimizer * 0.9)


def test_many_machines_are_answered_as_one() -> None:
    machines = [with_pool(gib) for gib in (0.5, 6, 40)]
    answers = estimate_all(MODEL, TRAINING, machines)
    assert [answer.fits for answer in answers] == [False, True, True]
    # The search is shorter, so that a plan may be slower, and never faster by more than chance.
    for machine, answer in zip(machines[1:], answers[1:], strict=True):
        assert 0.99 < seconds(answer) / seconds(estimate(MODEL, TRAINING, machine)) < 1.15


def test_machines_between_two_that_choose_alike_choose_as_they_do() -> None:
    training = replace(TRAINING, micro_batch=None, optimizer_on=None)
    hosts = [gib * GIB for gib in range(48, 65)]
    machines = [replace(with_pool(12), name=f"{host}", host_memory_bytes=host) for host in hosts]
    trials = [trials_of(MODEL, training, machine, strategy_of("memtide")) for machine in machines]
    chosen, looked = chosen_of_many(trials)
    assert looked == [0, 16]
    assert [trial.machine for trial in chosen] == machines
    assert {(trial.accumulation, trial.step_on) for trial in chosen} == {
        (chosen[0].accumulation, chosen[0].step_on)
    }
    # One that is not between is looked at by itself: where all fits, one micro-batch is best.
    trials[8] = trials_of(MODEL, training, with_pool(80), strategy_of("memtide"))
    others, looked = chosen_of_many(trials)
    assert others[8].machine == with_pool(80) and 8 in looked
    assert others[8].accumulation < chosen[0].accumulation


def test_a_row_of_machines_is_answered_as_each() -> None:
    hosts = [gib * GIB for gib in range(14, 48, 2)]
    machines = [replace(with_pool(3), host_memory_bytes=host, drive=DRIVE) for host in hosts]
    row = estimate_all(MODEL, TRAINING, machines)
    for machine, answer in list(zip(machines, row, strict=True))[1:-1:5]:
        (alone,) = estimate_all(MODEL, TRAINING, [machine])
        assert alone.low_s is not None and alone.high_s is not None
        assert alone.low_s < seconds(answer) < alone.high_s
        assert answer.least_host_bytes == alone.least_host_bytes


@pytest.mark.parametrize(
    ("value", "between"),
    [
        ({"name": "b", "rate": 2.0, "drive": None}, True),
        ({"name": "b", "rate": 4.0, "drive": None}, False),
        ({"name": "b", "rate": 0.5, "drive": None}, False),
        ({"name": "b", "rate": 2.0, "drive": {"rate": 1.0}}, False),
        ({"name": "b", "rate": 2.0}, False),
    ],
)
def test_between_is_in_every_figure(value: dict[str, object], between: bool) -> None:
    ends = [{"name": "a", "rate": rate, "drive": None} for rate in (3.0, 1.0)]
    assert is_between(value, *ends) is between
    assert is_between(value, *reversed(ends)) is between


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "at least 1"),
        ({"compute_type": "int3"}, "int3"),
        ({"optimizer_on": "moon"}, "moon"),
        ({"activations": "burn"}, "burn"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        estimate(MODEL, replace(TRAINING, **change), MACHINE)  # type: ignore[arg-type]


def test_frozen_parameters_have_no_gradient_and_no_states() -> None:
    frozen = tuple(replace(block, trained_parameters=0) for block in MODEL.blocks[:-1])
    model = replace(MODEL, blocks=(*frozen, MODEL.blocks[-1]))
    few = estimate(model, TRAINING, with_pool(3))
    all_ = estimate(MODEL, TRAINING, with_pool(3))
    assert few.busy is not None and all_.busy is not None
    assert few.busy.to_device < 0.6 * all_.busy.to_device
    assert few.least_host_bytes < all_.least_host_bytes
    assert States().trained() == 16


def test_an_ssd_pool_has_a_place_for_every_chunk_and_for_the_steps_shadow_chunks() -> None:
    small = replace(MACHINE, host_memory_bytes=16 * GIB, drive=DRIVE)
    states = MODEL.parameters() * 16
    on_device = estimate(MODEL, TRAINING, small).choice
    assert on_device is not None
    assert states <= on_device.ssd_pool_bytes < 1.2 * states
    on_host = estimate(MODEL, replace(TRAINING, optimizer_on="host"), small).choice
    assert on_host is not None
    # All that a step changes is written elsewhere first: 14 bytes of 16.
    assert on_host.ssd_pool_bytes >= states + MODEL.parameters() * 14


def test_a_machine_without_a_device_trains_in_host_memory_and_on_its_drive() -> None:
    training = replace(TRAINING, optimizer_on=None)
    spilled = with_pool(0, replace(MACHINE, host_memory_bytes=16 * GIB, drive=DRIVE))
    answer = estimate(MODEL, training, spilled)
    assert answer.choice is not None
    assert answer.choice.device_pool_bytes == 0
    assert answer.choice.optimizer_on == "host"
    assert answer.choice.host_pool_bytes >= 24 * answer.choice.chunk_bytes
    assert answer.choice.ssd_pool_bytes >= MODEL.parameters() * 30
    assert answer.busy is not None and answer.busy.to_device == 0
    whole = estimate(MODEL, training, with_pool(0))
    assert whole.choice is not None
    assert whole.choice.ssd_pool_bytes == 0
    assert seconds(whole) < seconds(answer)


def test_a_model_without_a_block_that_is_computed_again_keeps_all() -> None:
    ends = replace(MODEL, blocks=(MODEL.blocks[0], MODEL.blocks[2]))
    answer = estimate(ends, TRAINING, with_pool(40))
    assert answer.choice is not None and answer.choice.activations == ("keep", "keep")
