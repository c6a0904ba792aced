"""estimate(): the answer to one question, and estimate_all() to many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice, pairwise
from typing import Any

from memtide._plan.answer import Answer
from memtide._plan.estimate.planned import Depth, Planned, trials_of
from memtide._plan.estimate.planner import ask
from memtide._plan.estimate.streamed import answer_to
from memtide._plan.estimate.ways import way_of
from memtide._plan.machine import Machine
from memtide._plan.model import Model
from memtide._plan.training import Training
from memtide.errors import InvalidArgument

# One machine of this number in a row is looked at in any case.
_NEIGHBOURS = 16
_PLACES = (None, "host", "device")
_ACTIVATIONS = (None, "keep", "move", "recompute")


def estimate(
    model: Model, training: Training, machine: Machine, *, system: str = "memtide"
) -> Answer:
    """Whether a step fits, and what it takes, as `system` works (ways.py).

    Deterministic, thread-safe. It takes a second or less, in a process of its own. InvalidArgument:
    an unknown system or type, or a value that cannot be."""
    way = way_of(system)
    _check(model, training, machine)
    if not way.planned:
        return answer_to(model, training, machine, way)
    return _answers(_chosen([trials_of(model, training, machine, way)]), Depth.WHOLE)[0]


def estimate_all(
    model: Model, training: Training, machines: Sequence[Machine], *, system: str = "memtide"
) -> list[Answer]:
    """The same for many machines, in their order, with a shorter search for each: the plan that
    the search's own estimate ranks first is the only one that the engine plays."""
    way = way_of(system)
    for machine in machines:
        _check(model, training, machine)
    if not way.planned:
        return [answer_to(model, training, machine, way) for machine in machines]
    trials = [trials_of(model, training, machine, way) for machine in machines]
    return _answers(chosen_of_many(trials), Depth.SHORT)


def _chosen(machines: Sequence[Sequence[Planned]]) -> list[Planned]:
    """For each machine the trial with the fastest step in the search's own estimate; the last one,
    whose micro-batch is least, where none fits."""
    answers = iter(
        _answers([trial for trials in machines if len(trials) > 1 for trial in trials], Depth.LOOK)
    )
    chosen = []
    for trials in machines:
        found = [next(answers) for _ in trials] if len(trials) > 1 else []
        fastest = min(found, key=_seconds, default=None)
        fits = fastest is not None and fastest.fits
        chosen.append(trials[found.index(fastest)] if fastest and fits else trials[-1])
    return chosen


def chosen_of_many(machines: Sequence[Sequence[Planned]]) -> list[Planned]:
    """As _chosen(), where few machines are looked at: a machine whose every figure lies between
    those of two others that choose the same number of micro-batches and the same place chooses as
    they do."""
    ends = sorted({*range(0, len(machines), _NEIGHBOURS), len(machines) - 1}) if machines else []
    chosen = dict(zip(ends, _chosen([machines[at] for at in ends]), strict=True))
    for first, last in pairwise(ends):
        for at in range(first + 1, last):
            if same := _same(machines[at], chosen[first], chosen[last]):
                chosen[at] = same
    others = [at for at in range(len(machines)) if at not in chosen]
    chosen |= zip(others, _chosen([machines[at] for at in others]), strict=True)
    return [chosen[at] for at in range(len(machines))]


def _same(trials: Sequence[Planned], first: Planned, last: Planned) -> Planned | None:
    """The trial that chooses as both do, if they choose alike and its machine is between theirs."""
    if (first.accumulation, first.step_on) != (last.accumulation, last.step_on):
        return None
    if not is_between(asdict(trials[0].machine), asdict(first.machine), asdict(last.machine)):
        return None
    for trial in trials:
        if (trial.accumulation, trial.step_on) == (first.accumulation, first.step_on):
            return trial if trial.refusal() is None else None
    return None


def is_between(value: Any, first: Any, last: Any) -> bool:
    """Whether each number of a document lies between those of two others, and all else is equal in
    all three, but for names."""
    if isinstance(value, dict) and isinstance(first, dict) and isinstance(last, dict):
        return value.keys() == first.keys() == last.keys() and all(
            is_between(value[key], first[key], last[key]) for key in value if key != "name"
        )
    if isinstance(value, float | int) and isinstance(first, float | int):
        return isinstance(last, float | int) and min(first, last) <= value <= max(first, last)
    return bool(value == first == last)


def _seconds(answer: Answer) -> float:
    return math.inf if answer.step_s is None else answer.step_s


def _answers(trials: Sequence[Planned], depth: Depth) -> list[Answer]:
    trials = [replace(trial, depth=depth) for trial in trials]
    questions = [trial.questions() if trial.refusal() is None else [] for trial in trials]
    replies = iter(ask([question for each in questions for question in each]))
    return [
        trial.answer(list(islice(replies, len(each))))
        for trial, each in zip(trials, questions, strict=True)
    ]


def _check(model: Model, training: Training, machine: Machine) -> None:
    if model.parameters() < 1 or not model.blocks:
        raise InvalidArgument(f"the model '{model.name}' has no parameters: nothing is trained")
    if training.batch < 1 or training.sequence < 1:
        raise InvalidArgument(
            f"a step of {training.batch} sequences of {training.sequence} tokens: both are at "
            "least 1"
        )
    if training.optimizer_on not in _PLACES:
        raise InvalidArgument(
            f"the optimizer computes on host or device, not on " f"'{training.optimizer_on}'"
        )
    if training.activations not in _ACTIVATIONS:
        raise InvalidArgument(
            f"activations '{training.activations}': blocks keep, move or recompute them"
        )
    if model.longest_sequence is not None and training.sequence > model.longest_sequence:
        raise InvalidArgument(
            f"{model.name} takes sequences of up to {model.longest_sequence} tokens, not "
            f"{training.sequence}"
        )
    if machine.devices < 1:
        raise InvalidArgument(f"the machine '{machine.name}' has {machine.devices} devices")
