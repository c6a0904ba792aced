"""The best way of using a machine's devices for one training."""

from __future__ import annotations

import math
from dataclasses import replace

from memtide._plan.answer import Answer
from memtide._plan.devices.pipelines import Pipelines
from memtide._plan.devices.shards import STAGES, Sharded
from memtide._plan.devices.ways import DevicesPlan, Way
from memtide._plan.estimate import estimate
from memtide._plan.estimate.work import Rates, work_of
from memtide._plan.machine import Machine
from memtide._plan.model import Model
from memtide._plan.training import Training


def best(model: Model, training: Training, machine: Machine) -> DevicesPlan:
    """Compares one device, data parallel with equal bytes once on the host (as memtide shares
    them), data parallel with states on devices whole and in shards, and pipelines.

    Errors are those of estimate(). Pure but for the process in which that plans."""
    ways = [_estimated("one device", model, training, replace(machine, devices=1))]
    if machine.devices > 1:
        ways.append(_estimated("shared on the host", model, training, machine))
        sharded = Sharded(model=model, training=training, machine=machine)
        ways += [sharded.way(stage) for stage in STAGES]
        pipelines = Pipelines(model=model, training=training, machine=machine)
        for schedule in ("1f1b", "2bw"):
            ways += [pipelines.way(schedule, beside=beside) for beside in (False, True)]
    ways.sort(key=lambda way: math.inf if way.step_s is None else way.step_s)
    return DevicesPlan(
        devices=machine.devices,
        ways=tuple(ways),
        choice=next((way for way in ways if way.fits and way.same_losses), None),
        bound_s=bound_s(model, training, machine),
    )


def bound_s(model: Model, training: Training, machine: Machine) -> float:
    """All compute of a step, divided among the devices without a rest."""
    rates = Rates.of(machine.device, training.compute_type)
    works = work_of(model, training, rates, training.batch)
    compute_s = sum(work.block.count * (work.forward_s + work.backward_s) for work in works)
    return compute_s / machine.devices


def _estimated(name: str, model: Model, training: Training, machine: Machine) -> Way:
    answer = estimate(model, training, machine)
    if not answer.fits:
        return Way(
            name=name,
            detail="",
            fits=False,
            limit=answer.limit,
            device_bytes=answer.least_device_bytes,
        )
    return Way(
        name=name,
        detail=_detail(answer),
        fits=True,
        step_s=answer.step_s,
        device_bytes=answer.choice.device_pool_bytes if answer.choice else None,
        exchange_s=answer.busy.exchange if answer.busy else 0.0,
    )


def _detail(answer: Answer) -> str:
    choice = answer.choice
    if choice is None:
        return "no choice"
    return (
        f"{choice.accumulation} micro-batches of {choice.micro_batch}, "
        f"optimizer on the {choice.optimizer_on}"
    )
