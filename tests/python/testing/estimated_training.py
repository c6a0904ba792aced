"""A model, a machine and a training for tests of estimates."""

from __future__ import annotations

from dataclasses import replace

from memtide._plan_file.answer import Answer
from memtide._plan_file.machine import Device, Drive, Machine
from memtide._plan_file.model import Block, Model
from memtide._plan_file.training import Training

GIB = 2**30
WIDTH, MLP, LAYERS, WORDS = 2048, 8192, 16, 32000
LAYER = 4 * WIDTH * WIDTH + 2 * WIDTH * MLP
MODEL = Model(
    name="test",
    blocks=(
        Block(
            name="embedding",
            parameters=WORDS * WIDTH,
            trained_parameters=WORDS * WIDTH,
            flop_per_token=0,
            input_bytes_per_token=8,
            recomputable=False,
        ),
        Block(
            name="layers",
            count=LAYERS,
            parameters=LAYER,
            trained_parameters=LAYER,
            flop_per_token=2 * LAYER,
            flop_per_token_pair=4 * WIDTH,
            input_bytes_per_token=2 * WIDTH,
            attention_bytes_per_token=2 * WIDTH,
            rest_bytes_per_token=2 * (4 * WIDTH + 2 * MLP),
        ),
        Block(
            name="head",
            parameters=WORDS * WIDTH,
            trained_parameters=WORDS * WIDTH,
            flop_per_token=2 * WORDS * WIDTH,
            input_bytes_per_token=2 * WIDTH,
            recomputable=False,
        ),
    ),
)
DEVICE = Device(
    name="card",
    memory_bytes=16 * GIB,
    pool_bytes=6 * GIB,
    flop_per_s={"bfloat16": 200e12},
    memory_bytes_per_s=1e12,
    reached_flop=0.6,
    reached_memory=0.8,
)
MACHINE = Machine(
    name="box",
    device=DEVICE,
    to_device_bytes_per_s=20e9,
    from_device_bytes_per_s=20e9,
    host_memory_bytes=64 * GIB,
    host_memory_bytes_per_s=60e9,
)
DRIVE = Drive(read_bytes_per_s=6e9, write_bytes_per_s=5e9, size_bytes=1e12, endurance_bytes=600e12)
# 16 bytes for each of 0.9 billion parameters: 14.4 GB.
TRAINING = Training(batch=32, sequence=1024, micro_batch=8, optimizer_on="device")


def with_pool(gib: float, machine: Machine = MACHINE) -> Machine:
    return replace(machine, device=replace(machine.device, pool_bytes=gib * GIB))


def seconds(answer: Answer) -> float:
    assert answer.fits, answer.limit
    assert answer.step_s is not None
    return answer.step_s
