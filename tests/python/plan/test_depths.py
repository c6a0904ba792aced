"""A short search and a whole one answer one question alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memtide._plan_file.machine import Device, Drive, Machine
from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import Training
from memtide_plan.estimate import estimate, estimate_all
from memtide_plan.estimate.extrapolated_steps import corrected, grown

_GIB = 2**30
_LAYER = 50_000_000
_MODEL = Model(
    name="test",
    blocks=(
        Block(
            name="layers",
            count=16,
            parameters=_LAYER,
            trained_parameters=_LAYER,
            flop_per_token=2 * _LAYER,
            input_bytes_per_token=4096,
            rest_bytes_per_token=49152,
        ),
    ),
)
# States are 12.8 GB, of which the device and the host have 9.
_MACHINE = Machine(
    name="box",
    device=Device(
        name="card",
        memory_bytes=4 * _GIB,
        pool_bytes=3 * _GIB,
        flop_per_s={"bfloat16": 100e12},
        memory_bytes_per_s=1e12,
    ),
    to_device_bytes_per_s=20e9,
    from_device_bytes_per_s=20e9,
    host_memory_bytes=13 * _GIB,
    host_memory_bytes_per_s=60e9,
    drive=Drive(read_bytes_per_s=2e9, write_bytes_per_s=2e9, size_bytes=1e12),
)


@pytest.mark.parametrize(("ssd_bytes_per_s", "micro_batches"), [(5e8, 16), (2e9, 64), (4e9, 4)])
def test_many_micro_batches_beside_a_slow_drive_have_one_answer(
    ssd_bytes_per_s: float, micro_batches: int
) -> None:
    drive = Drive(
        read_bytes_per_s=ssd_bytes_per_s, write_bytes_per_s=ssd_bytes_per_s, size_bytes=1e12
    )
    machine = replace(_MACHINE, drive=drive)
    training = Training(batch=micro_batches, sequence=1024, micro_batch=1, optimizer_on="device")
    whole = estimate(_MODEL, training, machine)
    (short,) = estimate_all(_MODEL, training, [machine])
    assert whole.low_s is not None and whole.high_s is not None and short.step_s is not None
    assert whole.low_s < short.step_s < whole.high_s


def test_each_figure_grows_as_in_the_estimate() -> None:
    played = {"elapsed_s": 20.0, "compute_s": 5.0, "step_s": 1.0, "drive_read_bytes": 100.0}
    few = {"elapsed_s": 16.0, "compute_s": 4.0, "step_s": 1.0}
    many = {"elapsed_s": 24.0, "compute_s": 8.0, "step_s": 1.0}
    assert grown({**played, "plan": {}}, few, many, 2.0) == {
        "elapsed_s": 30.0,
        "compute_s": 10.0,
        "step_s": 1.0,
        "drive_read_bytes": 200.0,
        "plan": {},
    }


def test_a_machine_between_two_is_as_much_above_the_estimate_as_they_are() -> None:
    ends = [
        ({"elapsed_s": 12.0, "drive_read_bytes": 6.0}, {"elapsed_s": 10.0}),
        ({"elapsed_s": 28.0, "drive_read_bytes": 2.0}, {"elapsed_s": 20.0}),
    ]
    found = corrected({"elapsed_s": 16.0, "plan": {}}, ends, 0.25)
    assert found is not None
    assert found["elapsed_s"] == pytest.approx(16 * (0.75 * 1.2 + 0.25 * 1.4))
    # The estimate has no drive, so that the mean of both is all that is known.
    assert found["drive_read_bytes"] == pytest.approx(0.75 * 6 + 0.25 * 2)
    assert found["plan"] == {}
    for without in ({"plan": {}}, None):
        assert corrected(without, ends, 0.25) is None
        assert corrected({"elapsed_s": 16.0}, [ends[0], (ends[1][0], without)], 0.25) is None
