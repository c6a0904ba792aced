"""Plans of a small model that trains in host memory and on SSD."""

from __future__ import annotations

from memtide._plan_file.answer import Answer, Busy, Choice, Moved
from memtide._plan_file.machine import Device, Drive, Machine
from memtide._plan_file.model import Block, Model
from memtide._plan_file.question import AnsweredQuestion
from memtide._plan_file.training import Training

MIB = 2**20
BLOCKS = 4


def machine() -> Machine:
    """A machine whose device is the processor's own memory."""
    return Machine(
        name="here",
        device=Device(
            name="emulated",
            memory_bytes=2**30,
            pool_bytes=2**30,
            flop_per_s={"float32": 1e11},
            memory_bytes_per_s=1e10,
        ),
        to_device_bytes_per_s=1e9,
        from_device_bytes_per_s=1e9,
        host_memory_bytes=2**34,
        host_memory_bytes_per_s=5e9,
        drive=Drive(read_bytes_per_s=1e9, write_bytes_per_s=1e9, size_bytes=1e12),
    )


def model() -> Model:
    """Four equal blocks between an embedding and a head."""
    ends = {"parameters": 2**18, "trained_parameters": 2**18, "flop_per_token": 2.0**19}
    middle = Block(
        name="layers",
        count=BLOCKS,
        parameters=2**19,
        trained_parameters=2**19,
        flop_per_token=2.0**20,
        input_bytes_per_token=4096.0,
        rest_bytes_per_token=8192.0,
    )
    return Model(
        name="small",
        blocks=(
            Block(name="embedding", input_bytes_per_token=8.0, **ends),
            middle,
            Block(name="head", input_bytes_per_token=4096.0, recomputable=False, **ends),
        ),
    )


def planned(
    middle: tuple[str, ...] = ("keep",) * BLOCKS, *, device_pool_bytes: int = 0
) -> AnsweredQuestion:
    """A plan that fits. `middle`: what it chooses for the four blocks."""
    return AnsweredQuestion(
        model=model(),
        machine=machine(),
        training=Training(batch=2, sequence=64, micro_batch=2, compute_type="float32"),
        answer=Answer(
            fits=True,
            limit="host memory",
            least_device_bytes=16 * MIB,
            least_host_bytes=64 * MIB,
            step_s=0.5,
            low_s=0.4,
            high_s=0.625,
            tokens_per_s=256.0,
            busy=Busy(
                compute=0.3,
                recompute=0.05,
                to_device=0.01,
                from_device=0.01,
                drive=0.1,
                optimizer=0.2,
                waits=0.2,
            ),
            choice=Choice(
                chunk_bytes=2 * MIB,
                micro_batch=2,
                accumulation=1,
                ranks=1,
                optimizer_on="host",
                device_pool_bytes=device_pool_bytes,
                host_pool_bytes=33 * MIB,
                ssd_pool_bytes=64 * MIB,
                activations=("keep", *middle, "keep"),
            ),
            moved_bytes=Moved(drive_read=float(48 * MIB), drive_written=float(40 * MIB)),
            drive_years=None,
        ),
    )
