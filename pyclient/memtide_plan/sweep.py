"""The same question for a row of budgets: how the speed of a step follows one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from memtide._plan_file.machine import Drive, Machine
from memtide._plan_file.question import AnsweredQuestion, Question
from memtide.errors import UsageError

from memtide_plan.ask import units
from memtide_plan.estimate import estimate
from memtide_plan.fastest import ask_all

_DEFAULT_POINTS = 9
# The whole search takes a second for each.
_FEW_POINTS = 8
_MOST_POINTS = 2000


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One budget of a machine, by the name of the option that sets it."""

    name: str
    parse: Callable[[str, str], int]
    format: Callable[[float], str]
    apply: Callable[[Machine, float], Machine]


@dataclass(frozen=True, kw_only=True)
class Range:
    """The budgets that an axis goes through."""

    axis: Axis
    budgets: tuple[int, ...]  # In bytes, or bytes a second; they rise.


@dataclass(frozen=True, kw_only=True)
class Point:
    """One budget, and its answer."""

    budget: int
    planned: AnsweredQuestion


def _with_host_memory(machine: Machine, size_bytes: float) -> Machine:
    return replace(machine, host_memory_bytes=size_bytes)


def _with_device_memory(machine: Machine, size_bytes: float) -> Machine:
    device = machine.device
    if device.pool_bytes is not None:
        device = replace(device, pool_bytes=size_bytes)
    return replace(machine, device=replace(device, memory_bytes=size_bytes))


def _with_drive(machine: Machine, bytes_per_s: float) -> Machine:
    """A drive as fast as that in both directions, with the size and the life of the one there."""
    drive = machine.drive or Drive(
        read_bytes_per_s=bytes_per_s, write_bytes_per_s=bytes_per_s, size_bytes=2e12
    )
    drive = replace(drive, read_bytes_per_s=bytes_per_s, write_bytes_per_s=bytes_per_s)
    return replace(machine, drive=drive)


_AXES = {
    axis.name: axis
    for axis in (
        Axis(
            name="host-memory",
            parse=units.size,
            format=units.format_budget,
            apply=_with_host_memory,
        ),
        Axis(
            name="device-memory",
            parse=units.size,
            format=units.format_budget,
            apply=_with_device_memory,
        ),
        Axis(name="ssd", parse=units.rate, format=units.format_rate, apply=_with_drive),
    )
}


def range_of(text: str) -> Range:
    """The range of "host-memory=16GiB..256GiB", or of "ssd=1GB/s..14GB/s:20", which has 20 budgets.
    Each is larger than the one before by the same factor. UsageError."""
    name, equals, rest = text.partition("=")
    axis = _AXES.get(name)
    if axis is None or not equals:
        raise UsageError(
            f"--sweep {text} is not understood: write {', '.join(_AXES)} with =FROM..TO, for "
            "example host-memory=16GiB..256GiB"
        )
    interval, colon, count = rest.partition(":")
    first_text, dots, last_text = interval.partition("..")
    if not dots:
        raise UsageError(f"--sweep {text} has no end: write for example {name}={rest}..256GiB")
    first, last = (axis.parse(f"--sweep {name}", each) for each in (first_text, last_text))
    if not 0 < first < last:
        raise UsageError(f"--sweep {text} does not rise from a budget to a larger one")
    points = int(count) if count.isdecimal() else 0 if colon else _DEFAULT_POINTS
    if not 2 <= points <= _MOST_POINTS:
        raise UsageError(f"--sweep {text}: there are 2 to {_MOST_POINTS} budgets in a sweep")
    factor = (last / first) ** (1 / (points - 1))
    between = (round(first * factor**step / 2**20) * 2**20 for step in range(1, points - 1))
    return Range(axis=axis, budgets=(first, *between, last))


def sweep(question: Question, budgets: Range) -> list[Point]:
    """An answer for each budget, in their order: that of the whole search where they are few."""
    apply = budgets.axis.apply
    machines = [apply(question.machine, budget) for budget in budgets.budgets]
    planned = ask_all(question, machines)
    if len(planned) <= _FEW_POINTS:
        planned = [
            replace(each, answer=estimate(each.model, each.training, each.machine))
            for each in planned
        ]
    return [
        Point(budget=budget, planned=each)
        for budget, each in zip(budgets.budgets, planned, strict=True)
    ]


def least_for_half(points: list[Point]) -> Point | None:
    """The smallest budget with at least half of the sweep's highest speed; None: none fits."""
    speeds = [point.planned.answer.tokens_per_s or 0.0 for point in points]
    highest = max(speeds, default=0.0)
    if not highest:
        return None
    return next(point for point, speed in zip(points, speeds, strict=True) if 2 * speed >= highest)
