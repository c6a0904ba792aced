"""Pipelines, and pipelines beside each other: memtide_plan.pipelines with a model's blocks as its
layers.

Blocks of one kind that follow each other are joined where a model has many, so that an answer comes
quickly: a stage then ends between two groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training
from memtide.errors import InvalidArgument, ResourceExhausted

from memtide_plan.devices.device_strategies import DeviceStrategy, passes
from memtide_plan.estimate.limits import NO_ROOM, Need, limit_of
from memtide_plan.estimate.pools import device_pool
from memtide_plan.estimate.question import step_bytes
from memtide_plan.estimate.work import Rates, Work, work_of
from memtide_plan.pipelines.costs import Sums
from memtide_plan.pipelines.inputs import Devices, Layer, Seconds
from memtide_plan.pipelines.plan import Plan, plan
from memtide_plan.pipelines.schedules import SCHEDULES
from memtide_plan.pipelines.search import Fixed, least_memory, shapes

# The planner's time grows with the square of the number of layers.
_MOST_LAYERS = 24


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """One model on one machine, in stages."""

    model: Model
    training: Training
    machine: Machine

    def strategy(self, schedule: str, *, beside: bool) -> DeviceStrategy:
        """The fastest plan of a schedule, "1f1b" or "2bw": one pipeline of all devices, or with
        `beside`, two and more beside each other."""
        name = f"{'pipelines' if beside else 'pipeline'} {schedule}"
        same_losses = schedule == "1f1b"
        layers, trained = self._layers()
        devices = self._devices()
        widths = range(2, max(2, devices.count // 2) + 1) if beside else range(1, 2)
        plans = []
        for width in widths:
            for depth in range(2, min(len(layers), devices.count // width) + 1):
                fixed = Fixed(width=width, depth=depth, micro_batch=self.training.micro_batch)
                try:
                    found = plan(
                        layers, devices, self.training.batch, schedules=[schedule], fixed=fixed
                    )
                except (ResourceExhausted, InvalidArgument):
                    continue  # There is none, or none that fits: see _limit().
                plans.append((found.seconds + self._optimizer_s(found, trained), found))
        if not plans:
            limit = self._limit(layers, schedule, widths)
            return DeviceStrategy(
                name=name, detail="", fits=False, limit=limit, same_losses=same_losses
            )
        step_s, best = min(plans, key=lambda pair: pair[0])
        shape = best.shape
        divided = passes(shape.micro_batches, shape.micro_batch, recomputed=shape.recompute)
        return DeviceStrategy(
            name=name,
            detail=f"width {shape.width} x depth {shape.depth}, {divided}",
            fits=True,
            step_s=step_s,
            device_bytes=max(memory.total() for memory in best.memory),
            same_losses=same_losses,
        )

    def _limit(self, layers: list[Layer], schedule: str, widths: range) -> str:
        """Why no plan of these widths fits."""
        devices = self._devices()
        candidates = [
            shape
            for width in widths
            for shape in shapes(
                len(layers),
                devices.count,
                self.training.batch,
                Fixed(width=width, micro_batch=self.training.micro_batch),
                [SCHEDULES[schedule]],
            )
            if shape.depth > 1
        ]
        if not candidates and 2 * widths[0] > devices.count:
            return f"It needs {2 * widths[0]} devices at least, and there are {devices.count}."
        if not candidates:
            return (
                f"A step of {self.training.batch} sequences and {len(layers)} groups of blocks "
                "cannot be divided so."
            )
        *_, least = least_memory(Sums(layers), devices, candidates)
        return limit_of([Need("device memory", least, devices.memory_bytes())]) or NO_ROOM

    def _devices(self) -> Devices:
        machine = self.machine
        rate = f"{int(machine.exchange_bytes_per_s())}B/s"
        return Devices(
            count=machine.devices,
            memory=f"{max(1, int(device_pool(machine)))}B",
            per_server=machine.devices,
            inside=rate,
            across=rate,
        )

    def _optimizer_s(self, found: Plan, trained: Sequence[float]) -> float:
        """The longest step of a stage's optimizer."""
        rates = Rates.of(self.machine.device, self.training.compute_type)
        stages = zip(found.cuts, found.cuts[1:], strict=False)
        most = max(sum(trained[first:end]) for first, end in stages)
        return most * step_bytes(self.training) / rates.memory_bytes_per_s

    def _layers(self) -> tuple[list[Layer], list[float]]:
        """The layers, and the parameters that are trained in each."""
        rates = Rates.of(self.machine.device, self.training.compute_type)
        many = max(2, self.training.batch)
        few_works = work_of(self.model, self.training, rates, 1)
        many_works = work_of(self.model, self.training, rates, many)
        blocks = sum(work.block.count for work in few_works)
        group = max(1, math.ceil(blocks / _MOST_LAYERS))
        layers: list[Layer] = []
        trained: list[float] = []
        for at, (few, most) in enumerate(zip(few_works, many_works, strict=True)):
            following = few_works[min(at + 1, len(few_works) - 1)]
            left = few.block.count
            while left > 0:
                count = min(group, left)
                left -= count
                output = few if left else following
                layers.append(self._layer(few, most, (many, count), output.input_bytes))
                trained.append(count * few.block.trained_parameters)
        return layers, trained

    def _layer(self, few: Work, most: Work, sizes: tuple[int, int], output_bytes: float) -> Layer:
        """`sizes`: samples of `most`, and equal blocks in the layer."""
        many, count = sizes
        states, block = self.training.states, few.block

        def seconds(one_s: float, many_s: float) -> Seconds:
            per_sample_s = (many_s - one_s) / (many - 1)
            return Seconds(count * per_sample_s, count * max(0.0, one_s - per_sample_s))

        return Layer(
            name=block.name,
            forward=seconds(few.forward_s, most.forward_s),
            backward=seconds(few.backward_s, most.backward_s),
            weight_bytes=count * block.parameters * states.weight,
            gradient_bytes=count * block.trained_parameters * states.gradient,
            state_bytes=count * block.trained_parameters * states.optimizer,
            activation_bytes=count * few.saved_bytes(),
            output_bytes=output_bytes,
        )
