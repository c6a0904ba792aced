"""Answers of many machines, of which those in a row are much alike, as in a sweep.

A few machines of a row are looked at. Machines whose figures all lie between those of two others
that choose the same micro-batch and place of the optimizer choose as they do; else the middle one
is looked at, too. The engine plays those that were looked at. The ones between have the search's
own estimate, corrected as theirs are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice, pairwise
from typing import Any

from memtide._plan_file.answer import Answer

from memtide_plan.estimate.ask_replay import ask
from memtide_plan.estimate.extrapolated_steps import corrected
from memtide_plan.estimate.trials import Depth, Trial

# Machines from one that is looked at to the next one, and the parts of a long row.
_NEIGHBOURS, _PARTS = 16, 16
_Reply = Mapping[str, Any]


def answers_of_many(machines: Sequence[Sequence[Trial]]) -> list[Answer]:
    """The answer of each machine, of which these are the trials."""
    chosen, ends = chosen_of_many(machines)
    trials = [replace(trial, depth=Depth.SHORT) for trial in chosen]
    looks = [replace(trial, depth=Depth.LOOK) for trial in chosen]
    is_row = len(ends) < len(chosen)
    replies = _replies([*(trials[at] for at in ends), *(looks if is_row else ())])
    plays, estimates = dict(zip(ends, replies, strict=False)), replies[len(ends) :]
    for first, last in pairwise(ends):
        for at in range(first + 1, last):
            corners = [(plays[end], estimates[end]) for end in (first, last)]
            plays[at] = corrected(estimates[at], corners, (at - first) / (last - first))
    # One of the three has no plan, which the engine says.
    others = [at for at, reply in plays.items() if reply is None and at not in ends]
    plays |= zip(others, _replies([trials[at] for at in others]), strict=True)
    return [trial.answer(plays[at]) for at, trial in enumerate(trials)]


def chosen_of_each(machines: Sequence[Sequence[Trial]]) -> list[Trial]:
    """For each machine the trial with the fastest step in the search's own estimate; the last one,
    whose micro-batch is least, where none fits."""
    answers = iter(
        answers_at(
            [trial for trials in machines if len(trials) > 1 for trial in trials], Depth.LOOK
        )
    )
    chosen = []
    for trials in machines:
        found = [next(answers) for _ in trials] if len(trials) > 1 else []
        fastest = min(found, key=_seconds, default=None)
        fits = fastest is not None and fastest.fits
        chosen.append(trials[found.index(fastest)] if fastest and fits else trials[-1])
    return chosen


def chosen_of_many(machines: Sequence[Sequence[Trial]]) -> tuple[list[Trial], list[int]]:
    """The trial that each machine chooses, and the numbers of the machines that were looked at."""
    documents = [asdict(trials[0].machine) for trials in machines]
    step = max(_NEIGHBOURS, len(machines) // _PARTS)
    looked: dict[int, Trial] = {}
    between: dict[int, Trial] = {}
    wanted = sorted({*range(0, len(machines), step), len(machines) - 1}) if machines else []
    while wanted:
        looked |= zip(wanted, chosen_of_each([machines[at] for at in wanted]), strict=True)
        wanted = []
        for first, last in pairwise(sorted(looked)):
            missing = [at for at in range(first + 1, last) if at not in between]
            ends = documents[first], documents[last]
            alike = {
                at: trial
                for at in missing
                if (trial := _same(machines[at], looked[first], looked[last]))
                and is_between(documents[at], *ends)
            }
            if len(alike) == len(missing):
                between |= alike
            else:
                wanted.append((first + last) // 2)
    chosen = looked | between
    return [chosen[at] for at in range(len(machines))], sorted(looked)


def _same(trials: Sequence[Trial], first: Trial, last: Trial) -> Trial | None:
    """The trial that chooses as both do, if they choose alike and it is not refused."""
    choice = first.accumulation, first.step_on
    if choice != (last.accumulation, last.step_on):
        return None
    alike = (trial for trial in trials if (trial.accumulation, trial.step_on) == choice)
    return next((trial for trial in alike if trial.refusal() is None), None)


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


def answers_at(trials: Sequence[Trial], depth: Depth) -> list[Answer]:
    """The answer of each of these trials, by a search of this depth."""
    trials = [replace(trial, depth=depth) for trial in trials]
    return [trial.answer(reply) for trial, reply in zip(trials, _replies(trials), strict=True)]


def _replies(trials: Sequence[Trial]) -> list[_Reply | None]:
    questions = [trial.questions() if trial.refusal() is None else [] for trial in trials]
    replies = iter(ask([question for each in questions for question in each]))
    return [
        trial.reply(list(islice(replies, len(each))))
        for trial, each in zip(trials, questions, strict=True)
    ]
