"""Data parallel training with all states on the devices, whole or in shards.

Stages are those of ZeRO (Rajbhandari et al., SC 2020): 0 has all states on each device, 1 divides
the optimizer's, 2 gradients, too, and 3 also weights. Exchanges are rings, or pass host memory
where devices have no link between them; a device sends and receives (n - 1) / n of what is gathered
or reduced. Collectives are kernels on the multiprocessors that compute, so that a pass takes both
times; by the host they pass beside it, block by block, and it takes the longer of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from memtide._plan.devices.ways import Way
from memtide._plan.estimate.pools import device_pool, transient_bytes
from memtide._plan.estimate.question import step_bytes
from memtide._plan.estimate.work import Rates, Work, work_of
from memtide._plan.machine import Machine
from memtide._plan.model import Model
from memtide._plan.models.described import element_bytes
from memtide._plan.training import Training
from memtide._util.sizes import format_size

STAGES = (0, 1, 2, 3)
# Blocks whose weights are whole on a device at a time: the one that computes, and the next one.
_GATHERED_BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """A device's step: passes of one micro-batch, and what comes once."""

    forward: float
    backward: float
    accumulation: int
    gather: float  # All weights, to all devices.
    reduce: float  # All gradients, to the devices of their shards.
    optimizer: float  # For all trained parameters.
    devices: int
    are_linked: bool  # Collectives use links between devices.

    def step(self, stage: int) -> float:
        """A step of this stage."""
        # Each device steps its shards; where there are none, each steps all.
        optimizer = self.optimizer / (self.devices if stage else 1)
        if stage == 3:
            back = self._both(self.backward, self.gather + self.reduce)
            passes = self._both(self.forward, self.gather) + back
            return self.accumulation * passes + optimizer
        passes = self.forward + self.backward
        reduced = self.forward + self._both(self.backward, self.reduce)
        if stage == 2:  # Shards of gradients are reduced in each micro-batch.
            return self.accumulation * reduced + optimizer + self.gather
        if stage == 1:
            before = (self.accumulation - 1) * passes
            return before + reduced + optimizer + self.gather
        # A ring's all-reduce reduces and gathers gradients.
        last = self.forward + self._both(self.backward, 2 * self.reduce)
        return (self.accumulation - 1) * passes + last + optimizer

    def _both(self, compute: float, exchange: float) -> float:
        return compute + exchange if self.are_linked else max(compute, exchange)

    def exchange(self, stage: int) -> float:
        """Seconds of exchanges in it."""
        if stage == 3:
            return self.accumulation * (2 * self.gather + self.reduce)
        if stage == 2:
            return self.accumulation * self.reduce + self.gather
        return self.reduce + self.gather if stage == 1 else 2 * self.reduce


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """One model on one machine, in shards."""

    model: Model
    training: Training
    machine: Machine

    def way(self, stage: int) -> Way:
        """The fastest micro-batch, with recomputation or without, that fits; or what is missing."""
        name = f"zero-{stage}" if stage else "replicas"
        pool = device_pool(self.machine)
        best: Way | None = None
        least = math.inf
        for micro_batch, recompute, works in self._trials():
            held = self.device_bytes(stage, works, recompute=recompute)
            least = min(least, held)
            if held > pool:
                continue
            seconds = self.seconds(works, micro_batch, recompute=recompute)
            step_s = seconds.step(stage)
            if best is None or best.step_s is None or step_s < best.step_s:
                again = ", recomputed" if recompute else ""
                best = Way(
                    name=name,
                    detail=f"{seconds.accumulation} micro-batches of {micro_batch}{again}",
                    fits=True,
                    step_s=step_s,
                    device_bytes=held,
                    exchange_s=seconds.exchange(stage),
                )
        if best is not None:
            return best
        limit = f"A device needs {format_size(least)} at least, and {format_size(pool)} can be had."
        return Way(name=name, detail="", fits=False, limit=limit, device_bytes=least)

    def device_bytes(self, stage: int, works: tuple[Work, ...], *, recompute: bool) -> float:
        """What a device holds at most."""
        states, devices = self.training.states, self.machine.devices
        trained = self.model.trained_parameters()
        parts = [devices if stage >= least else 1 for least in (3, 2, 1)]
        held = self.model.parameters() * states.weight / parts[0]
        held += trained * (states.gradient / parts[1] + states.optimizer / parts[2])
        widest = max(work.block.parameters for work in works)
        if stage == 3:
            held += _GATHERED_BLOCKS * widest * states.weight
        if stage >= 2:
            held += max(work.block.trained_parameters for work in works) * states.gradient
        return held + _activation_bytes(works, recompute=recompute) + transient_bytes(works)

    def seconds(self, works: tuple[Work, ...], micro_batch: int, *, recompute: bool) -> Seconds:
        """The parts of a step."""
        model, states, machine = self.model, self.training.states, self.machine
        again = sum(work.block.count * work.recompute_s for work in works if recompute_of(work))
        share = (machine.devices - 1) / machine.devices
        trained = model.trained_parameters()
        passed = trained * step_bytes(self.training)
        # A float32 master is gathered in the type that computes.
        gathered = min(states.weight, element_bytes(self.training.compute_type))
        rates = Rates.of(machine.device, self.training.compute_type)
        return Seconds(
            forward=sum(work.block.count * work.forward_s for work in works),
            backward=sum(work.block.count * work.backward_s for work in works)
            + (again if recompute else 0.0),
            accumulation=math.ceil(self._share() / micro_batch),
            gather=share * model.parameters() * gathered / gather_bytes_per_s(machine),
            reduce=share * trained * states.gradient / reduce_bytes_per_s(machine),
            optimizer=passed / rates.memory_bytes_per_s,
            devices=machine.devices,
            are_linked=machine.between_devices_bytes_per_s is not None,
        )

    def _share(self) -> int:
        return math.ceil(self.training.batch / self.machine.devices)

    def _trials(self) -> Iterator[tuple[int, bool, tuple[Work, ...]]]:
        rates = Rates.of(self.machine.device, self.training.compute_type)
        share, micro_batch = self._share(), self.training.micro_batch
        divisors = [size for size in range(share, 0, -1) if share % size == 0]
        for size in divisors if micro_batch is None else [min(micro_batch, share)]:
            works = work_of(self.model, self.training, rates, size)
            for recompute in (False, True):
                yield size, recompute, works


def gather_bytes_per_s(machine: Machine) -> float:
    """What a device receives of what all others send it."""
    return machine.between_devices_bytes_per_s or machine.to_device_bytes_per_s


def reduce_bytes_per_s(machine: Machine) -> float:
    """What a device sends and receives at a time, in each direction."""
    if machine.between_devices_bytes_per_s:
        return machine.between_devices_bytes_per_s
    both = machine.both_ways_bytes_per_s
    one = min(machine.to_device_bytes_per_s, machine.from_device_bytes_per_s)
    return one if both is None else min(one, both / 2)


def recompute_of(work: Work) -> bool:
    """Whether a block is computed again where others are."""
    return work.block.recomputable


def _activation_bytes(works: tuple[Work, ...], *, recompute: bool) -> float:
    if not recompute:
        return sum(work.block.count * work.saved_bytes() for work in works)
    # One block at a time has all of its results back; the others have their inputs.
    held = max(work.saved_bytes() for work in works)
    for work in works:
        held += work.block.count * (work.input_bytes if recompute_of(work) else work.saved_bytes())
    return held
