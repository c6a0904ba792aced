"""Plans how a model trains on devices: `plan`, which memtide.pipeline exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtide._util.sizes import format_size
from memtide.errors import InvalidArgument, ResourceExhausted

from memtide_plan.pipelines.costs import Memory, Shape, StageCosts, Sums
from memtide_plan.pipelines.cuts import Cut
from memtide_plan.pipelines.inputs import Devices, Layer, check_layers
from memtide_plan.pipelines.schedules import SCHEDULES
from memtide_plan.pipelines.search import Fixed, fastest, least_memory, shapes


@dataclass(frozen=True)
class Plan:
    """Width pipelines of equal stages beside each other, and what they are predicted to take."""

    shape: Shape
    # The first layer of each stage, and the number of layers.
    cuts: tuple[int, ...]
    seconds: float  # For a batch.
    memory: tuple[Memory, ...]  # The memory of a device, by stage.

    def __str__(self) -> str:
        """The plan in one line."""
        shape = self.shape
        most = max(self.memory, key=Memory.total)
        layers = "+".join(str(b - a) for a, b in zip(self.cuts, self.cuts[1:], strict=False))
        return (
            f"{shape.schedule.name}, width {shape.width} x depth {shape.depth} ({layers} layers), "
            f"{shape.micro_batches} micro-batches of {shape.micro_batch}"
            f"{', recomputed' if shape.recompute else ''}: {self.seconds:.3g} s a batch, "
            f"{format_size(most.total())} a device ({parts(most)})"
        )


def plan(
    layers: Sequence[Layer],
    devices: Devices,
    batch: int,
    *,
    schedules: Sequence[str] = ("1f1b", "2bw"),
    fixed: Fixed | None = None,
) -> Plan:
    """The fastest plan for batches of `batch` samples, over all pipelines, that fits the devices.

    InvalidArgument for what no plan can be made for; ResourceExhausted if none fits: it has the
    least memory with which one would."""
    if fixed is None:
        fixed = Fixed()
    _check(layers, devices, batch, schedules, fixed)
    chosen = [SCHEDULES[name] for name in schedules]
    candidates = list(shapes(len(layers), devices.count, batch, fixed, chosen))
    if not candidates:
        raise InvalidArgument(
            f"no pipeline of {', '.join(schedules)} has {fixed} with {len(layers)} layers, "
            f"{devices.count} devices and batches of {batch}: 2bw needs two stages, and as many "
            "micro-batches as stages"
        )
    sums = Sums(layers)
    found = fastest(sums, devices, candidates)
    if found is None:
        costs, cut, least_bytes = least_memory(sums, devices, candidates)
        least = max(_memory(costs, cut), key=Memory.total)
        raise ResourceExhausted(
            f"no plan for {devices.count} devices fits {devices.memory} each; the least that one "
            f"needs is {format_size(least_bytes)} ({int(least_bytes) + 1} B): {parts(least)}, with "
            f"width {costs.shape.width} and depth {costs.shape.depth}. Use larger devices, or more"
        )
    costs, cut, seconds = found
    return Plan(costs.shape, cut.cuts, seconds, _memory(costs, cut))


def parts(memory: Memory) -> str:
    """The uses of the bytes of a device."""
    named = memory._asdict().items()
    return ", ".join(f"{name.replace('_', ' ')} {format_size(value)}" for name, value in named)


def _memory(costs: StageCosts, cut: Cut) -> tuple[Memory, ...]:
    spans = enumerate(zip(cut.cuts, cut.cuts[1:], strict=False))
    return tuple(costs.memory(stage, *span) for stage, span in spans)


def _check(
    layers: Sequence[Layer], devices: Devices, batch: int, schedules: Sequence[str], fixed: Fixed
) -> None:
    check_layers(layers)
    devices.check()
    if batch < 1:
        raise InvalidArgument(f"a batch has {batch} samples; it needs one or more")
    unknown = set(schedules) - SCHEDULES.keys()
    if unknown or not schedules:
        names = ", ".join(sorted(unknown)) or "none"
        raise InvalidArgument(f"schedules: {names}; there are {', '.join(SCHEDULES)}")
    for name in ("width", "depth", "micro_batch"):
        value = getattr(fixed, name)
        if value is not None and value < 1:
            raise InvalidArgument(f"Fixed.{name} is {value}; it must be one or more")
    samples = (fixed.width or 1) * (fixed.micro_batch or 1)
    if batch % samples:
        raise InvalidArgument(
            f"a batch of {batch} samples is not divisible by width x micro-batch, {samples}"
        )
