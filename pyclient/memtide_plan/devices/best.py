"""The best strategy of using a machine's devices for one training."""

from __future__ import annotations

import math
from dataclasses import replace

from memtide._plan_file.answer import Choice
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training

from memtide_plan.devices.device_strategies import DevicesPlan, DeviceStrategy, passes
from memtide_plan.devices.pipelines import Pipelines
from memtide_plan.estimate import estimate
from memtide_plan.estimate.system_strategies import strategy_of
from memtide_plan.estimate.work import Rates, work_of

# Data parallel strategies, and the system of estimate/system_strategies.py that has each: memtide,
# and those of fixed rules, with states whole on each device, in shards on devices, and in shards
# elsewhere.
SYSTEMS = {
    "one device": "memtide",
    "shared on the host": "memtide",
    "replicas": "ddp",
    "zero-1": "zero-1",
    "zero-2": "zero-2",
    "zero-3": "fsdp",
    "zero-2 offload": "zero-offload",
    "zero-3 offload": "deepspeed-cpu",
    "zero-infinity": "zero-infinity",
    "zero-infinity, weights too": "zero-infinity-weights",
}
_PLACES = {"device": "on devices", "host": "in host memory", "drive": "on drives"}


def best(model: Model, training: Training, machine: Machine) -> DevicesPlan:
    """Compares one device, data parallel with equal bytes once on the host (as memtide shares
    them), the strategies of SYSTEMS, and pipelines.

    Errors are those of estimate(). Pure but for the process in which that plans."""
    one, *several = SYSTEMS
    strategies = [as_planned(one, model, training, replace(machine, devices=1))]
    if machine.devices > 1:
        strategies += [as_planned(name, model, training, machine) for name in several]
        pipelines = Pipelines(model=model, training=training, machine=machine)
        for schedule in ("1f1b", "2bw"):
            strategies += [pipelines.strategy(schedule, beside=beside) for beside in (False, True)]
    strategies.sort(key=lambda strategy: math.inf if strategy.step_s is None else strategy.step_s)
    return DevicesPlan(
        devices=machine.devices,
        strategies=tuple(strategies),
        choice=next(
            (strategy for strategy in strategies if strategy.fits and strategy.same_losses), None
        ),
        bound_s=bound_s(model, training, machine),
    )


def bound_s(model: Model, training: Training, machine: Machine) -> float:
    """All compute of a step, divided among the devices without a rest."""
    rates = Rates.of(machine.device, training.compute_type)
    works = work_of(model, training, rates, training.batch)
    compute_s = sum(work.block.count * (work.forward_s + work.backward_s) for work in works)
    return compute_s / machine.devices


def as_planned(name: str, model: Model, training: Training, machine: Machine) -> DeviceStrategy:
    """A strategy of SYSTEMS, as estimate() answers for its system."""
    answer = estimate(model, training, machine, system=SYSTEMS[name])
    choice, busy = answer.choice, answer.busy
    if not answer.fits or choice is None or busy is None:
        return DeviceStrategy(
            name=name,
            detail="",
            fits=False,
            limit=answer.limit,
            device_bytes=answer.least_device_bytes,
        )
    again = set(choice.activations) == {"recompute"}
    return DeviceStrategy(
        name=name,
        detail=f"{passes(choice.accumulation, choice.micro_batch, recomputed=again)}; "
        f"{_places(SYSTEMS[name], choice)}",
        fits=True,
        step_s=answer.step_s,
        device_bytes=choice.device_pool_bytes,
        host_bytes=choice.host_pool_bytes,
        drive_bytes=choice.ssd_pool_bytes,
        exchange_s=busy.exchange,
    )


def _places(system: str, choice: Choice) -> str:
    """Where a system has its states, and where it steps."""
    strategy, step = strategy_of(system), f"optimizer on the {choice.optimizer_on}"
    if strategy.is_searched:
        return step
    states = {
        "weights": strategy.weights,
        "gradients": strategy.gradients,
        "moments": strategy.optimizer,
    }
    if len(set(states.values())) == 1:
        named = [f"all states {_PLACES[strategy.weights]}"]
    else:
        at = {place: [name for name in states if states[name] == place] for place in _PLACES}
        named = [f"{' and '.join(at[place])} {_PLACES[place]}" for place in at if at[place]]
    return "; ".join(named if strategy.step == "device" else [*named, step])
