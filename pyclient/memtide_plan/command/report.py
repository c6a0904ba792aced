"""The output of `memtide plan`: an answer in lines, with a bar for each part of a step's time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from memtide._plan_file.answer import Answer, Busy, Choice
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.question import AnsweredQuestion
from memtide._plot.sweep_plot import Curve
from memtide._util.sizes import format_size

from memtide_plan.ask.units import format_rate
from memtide_plan.buy import Bought
from memtide_plan.sweep import Axis, Point, least_for_half

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MOST_NEXT = 4
_MEANINGS = {"keep": "stay", "move": "move", "recompute": "are recomputed"}


def answer_lines(planned: AnsweredQuestion) -> Iterator[str]:
    """All that an answer says."""
    answer, training = planned.answer, planned.training
    yield f"{model_text(planned.model)} on {machine_text(planned.machine)}"
    if not answer.fits:
        yield answer.limit
        yield _least_line(answer)
        return
    yield f"fits. {answer.limit}"
    if answer.step_s is not None:
        yield f"step: {_step_text(answer)}, {training.batch} x {training.sequence} tokens"
    if answer.busy is not None and answer.step_s:
        yield "where the time of a step goes (parts overlap):"
        yield from bar_lines(answer.busy, answer.step_s)
    if answer.choice is not None:
        yield from _choice_lines(answer.choice, planned.machine)
    yield _least_line(answer)
    yield from _drive_lines(answer)


def model_text(model: Model) -> str:
    """A model's name and size: "llama (8.03 billion parameters, 0.26% of them trained)"."""
    parameters, trained = model.parameters(), model.trained_parameters()
    share = "" if trained == parameters else f", {100 * trained / parameters:.2g}% of them trained"
    return f"{model.name} ({_count(parameters)} parameters{share})"


def machine_text(machine: Machine) -> str:
    """A machine in a few words."""
    device = f"{machine.device.name}, {format_size(machine.device.memory_bytes)}"
    if machine.devices > 1:
        device = f"{machine.devices} x {device}"
    parts = [device, f"{format_size(machine.host_memory_bytes)} of host memory"]
    drive = machine.drive
    if drive is None:
        parts.append("no drive")
    elif drive.read_bytes_per_s == drive.write_bytes_per_s:
        parts.append(f"a drive of {format_rate(drive.read_bytes_per_s)}")
    else:
        read, written = map(format_rate, (drive.read_bytes_per_s, drive.write_bytes_per_s))
        parts.append(f"a drive of {read} read and {written} written")
    return ", ".join(parts)


def bar_lines(busy: Busy, step_s: float) -> Iterator[str]:
    """A line for each part of a step that takes time, with a bar as long as its share of the
    step."""
    parts = {
        "compute": busy.compute,
        "  recomputation": busy.recompute,
        "host to device": busy.to_device,
        "device to host": busy.from_device,
        "drive": busy.drive,
        "optimizer": busy.optimizer,
        "between devices": busy.exchange,
        "the device waits": busy.waits,
    }
    width = max(map(len, parts))
    for name, seconds in parts.items():
        if seconds > 0:
            bar = _bar(seconds / step_s)
            yield f"  {name:<{width}} {bar:<{_BAR_WIDTH}} {seconds_text(seconds):>8}"


def bought_lines(bought: Bought, target: float) -> Iterator[str]:
    """The cheapest machine that reaches a speed, and the next ones."""
    if not bought.reaching:
        fastest = bought.fastest
        if fastest is None:
            yield "the model trains on no machine of the catalogue that has a price"
        else:
            yield (
                f"no machine of the catalogue reaches {_number(target)} tokens/s; the fastest is "
                f"{_priced(fastest)}"
            )
        return
    yield f"the cheapest that reaches {_number(target)} tokens/s: {_priced(bought.reaching[0])}"
    for planned in bought.reaching[1 : 1 + _MOST_NEXT]:
        yield f"next: {_priced(planned)}"


def sweep_lines(axis: Axis, points: Sequence[Point]) -> Iterator[str]:
    """A line for each budget, and the smallest with half of the highest speed."""
    texts = [axis.format(point.budget) for point in points]
    width = max(map(len, [axis.name, *texts]))
    yield f"{axis.name:>{width}}  tokens/s"
    for text, point in zip(texts, points, strict=True):
        answer = point.planned.answer
        speed = _number(answer.tokens_per_s or 0.0) if answer.fits else "does not fit"
        yield f"{text:>{width}}  {speed:>8}"
    half = least_for_half(list(points))
    if half is None:
        yield "the model trains with none of these budgets"
    else:
        yield f"half of the highest speed needs {axis.name} {axis.format(half.budget)}"


def curve(axis: Axis, points: Sequence[Point], title: str) -> Curve:
    """The curve that a picture of a sweep shows."""
    answers = [point.planned.answer for point in points]
    tokens = [point.planned.training.tokens() for point in points]
    return Curve(
        title=title,
        budget_label=axis.name,
        budgets=[point.budget for point in points],
        budget_texts=[axis.format(point.budget) for point in points],
        speeds=[answer.tokens_per_s for answer in answers],
        low=[n / a.high_s if a.high_s else None for n, a in zip(tokens, answers, strict=True)],
        high=[n / a.low_s if a.low_s else None for n, a in zip(tokens, answers, strict=True)],
    )


def seconds_text(seconds: float) -> str:
    """A time with three digits."""
    if seconds >= 0.9995:
        return f"{_number(seconds)} s"
    return f"{_number(1e3 * seconds)} ms"


def _step_text(answer: Answer) -> str:
    assert answer.step_s is not None
    text = seconds_text(answer.step_s)
    if answer.low_s is not None and answer.high_s is not None:
        text += f" ({seconds_text(answer.low_s)} to {seconds_text(answer.high_s)})"
    if answer.tokens_per_s is not None:
        text += f", {_number(answer.tokens_per_s)} tokens/s"
    return text


def _choice_lines(choice: Choice, machine: Machine) -> Iterator[str]:
    ranks = f", {choice.ranks} ranks" if choice.ranks > 1 else ""
    yield (
        f"choice: chunks of {format_size(choice.chunk_bytes)}, micro-batch {choice.micro_batch}, "
        f"accumulation {choice.accumulation}{ranks}, optimizer on the {choice.optimizer_on}"
    )
    pools = [
        f"{name} {format_size(size_bytes)}"
        for name, size_bytes in (
            ("device", choice.device_pool_bytes),
            ("host", choice.host_pool_bytes),
            ("SSD", choice.ssd_pool_bytes),
        )
        if size_bytes
    ]
    resident = ""
    if choice.resident_bytes:
        where = "on the device" if choice.device_pool_bytes else "in host memory"
        resident = f"; {format_size(choice.resident_bytes)} of states stay {where}"
    yield f"pools: {', '.join(pools) or 'none'}{resident}"
    if choice.activations:
        counts = Counter(choice.activations)
        parts = [f"{counts[name]} {text}" for name, text in _MEANINGS.items() if counts[name]]
        yield f"activations of {len(choice.activations)} blocks: {', '.join(parts)}"


def _least_line(answer: Answer) -> str:
    device, host = map(format_size, (answer.least_device_bytes, answer.least_host_bytes))
    return f"the least: device memory {device}, or host memory {host}, the rest as it is"


def _drive_lines(answer: Answer) -> Iterator[str]:
    if not answer.moved_bytes.drive_written:
        return
    written = format_size(answer.moved_bytes.drive_written)
    if answer.drive_years is None:
        yield f"drive: {written} written in a step; --ssd-life says for how long it lasts"
    else:
        days = 365.25 * answer.drive_years
        in_days = f" ({_number(days)} days)" if days < 100 else ""
        yield (
            f"drive: {written} written in a step; it lasts {_number(answer.drive_years)} "
            f"years{in_days} of training without a pause"
        )


def _priced(planned: AnsweredQuestion) -> str:
    machine = planned.machine
    return (
        f"{machine.name}, {machine.price or 0.0:,.0f} dollars, "
        f"{_number(planned.answer.tokens_per_s or 0.0)} tokens/s"
    )


def _bar(share: float) -> str:
    """A bar whose full width is a whole step."""
    eighths = round(8 * _BAR_WIDTH * min(1.0, share))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _count(number: int) -> str:
    for factor, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if number >= factor:
            return f"{number / factor:.3g} {name}"
    return f"{number:,}"


def _number(value: float) -> str:
    """Three digits, or all before the point: "0.0123", "12.3", "12,345"."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
