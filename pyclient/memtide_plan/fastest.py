"""Answers questions, and searches the fastest batch and the sequence where they are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memtide._plan_file.answer import Answer
from memtide._plan_file.machine import Machine
from memtide._plan_file.question import AnsweredQuestion, Question
from memtide._plan_file.training import Training

from memtide_plan.estimate import estimate, estimate_all

# Sequences are this long where neither the user nor the model says less.
_USUAL_SEQUENCE = 4096
_SHORTEST_SEQUENCE = 128
# A batch of twice as many sequences is tried as long as it is faster by this factor.
_LEAST_GAIN = 1.02
_MOST_DOUBLINGS = 10


def ask(question: Question) -> AnsweredQuestion:
    """The answer. Where the batch is open, it is the fastest that fits, in tokens a second, among
    powers of two for each device. Where the sequence is open, it is the usual length, or the half
    of that, a quarter and so on, until it fits. A shorter search finds them, and the whole one
    answers for them.

    InvalidArgument: the question has no answer.
    """
    if question.batch is not None and question.sequence is not None:
        training = replace(question.training, batch=question.batch, sequence=question.sequence)
    else:
        (found,) = ask_all(question, [question.machine])
        training = found.training
    answer = estimate(question.model, training, question.machine)
    return AnsweredQuestion(
        model=question.model, machine=question.machine, training=training, answer=answer
    )


def ask_all(question: Question, machines: Sequence[Machine]) -> list[AnsweredQuestion]:
    """The same question for each of these machines, in their order, by the shorter search."""
    lengths = _sequences(question)
    planned: dict[int, AnsweredQuestion] = {}
    open_numbers = list(range(len(machines)))
    for sequence in lengths:
        found = _with_sequence(question, sequence, [machines[i] for i in open_numbers])
        planned |= dict(zip(open_numbers, found, strict=True))
        open_numbers = [i for i in open_numbers if not planned[i].answer.fits]
        if not open_numbers:
            break
    return [planned[i] for i in range(len(machines))]


def _sequences(question: Question) -> list[int]:
    longest = question.model.longest_sequence
    if question.sequence is not None:
        return [question.sequence]
    lengths = [min(_USUAL_SEQUENCE, longest or _USUAL_SEQUENCE)]
    while lengths[-1] >= 2 * _SHORTEST_SEQUENCE:
        lengths.append(lengths[-1] // 2)
    return lengths


def _with_sequence(
    question: Question, sequence: int, machines: Sequence[Machine]
) -> list[AnsweredQuestion]:
    """For each machine the fastest batch."""
    training = replace(question.training, sequence=sequence)
    if question.batch is not None:
        fixed = replace(training, batch=question.batch)
        return _planned(question, [fixed] * len(machines), machines)
    smallest = [(question.training.micro_batch or 1) * each.devices for each in machines]
    best = _planned(question, [replace(training, batch=batch) for batch in smallest], machines)
    rising = [i for i, each in enumerate(best) if each.answer.fits]
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        trainings = [replace(training, batch=smallest[i] << doubling) for i in rising]
        tried = dict(
            zip(rising, _planned(question, trainings, [machines[i] for i in rising]), strict=True)
        )
        rising = [i for i, each in tried.items() if _speed(each) > _LEAST_GAIN * _speed(best[i])]
        for i in rising:
            best[i] = tried[i]
        if not rising:
            break
    return best


def _planned(
    question: Question, trainings: Sequence[Training], machines: Sequence[Machine]
) -> list[AnsweredQuestion]:
    """The answers for machines, each with a training of its own. Machines with equal trainings are
    asked at once."""
    answers: dict[int, Answer] = {}
    for training in dict.fromkeys(trainings):
        alike = [i for i, each in enumerate(trainings) if each == training]
        found = estimate_all(question.model, training, [machines[i] for i in alike])
        answers |= dict(zip(alike, found, strict=True))
    return [
        AnsweredQuestion(
            model=question.model, machine=machine, training=training, answer=answers[i]
        )
        for i, (training, machine) in enumerate(zip(trainings, machines, strict=True))
    ]


def _speed(planned: AnsweredQuestion) -> float:
    return planned.answer.tokens_per_s or 0.0
