"""The cheapest machine that reaches a speed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memtide._plan_file.machine import Machine
from memtide._plan_file.question import AnsweredQuestion, Question
from memtide.errors import InvalidArgument

from memtide_plan.fastest import ask_all


@dataclass(frozen=True, kw_only=True)
class Bought:
    """The machines that reach a speed, from the cheapest on, and the fastest of all."""

    reaching: tuple[AnsweredQuestion, ...]
    fastest: AnsweredQuestion | None  # None: the model trains on no machine that has a price.


def buy(question: Question, tokens_per_s: float, machines: Iterable[Machine]) -> Bought:
    """Answers `question` for each machine that has a price, in place of its own machine. Devices
    that do not compute in the training's type are left out.

    InvalidArgument: no such machine has a price."""
    compute_type = question.training.compute_type
    planned = ask_all(
        question,
        [m for m in machines if m.price is not None and compute_type in m.device.flop_per_s],
    )
    if not planned:
        raise InvalidArgument("no machine of the catalogue has a price")
    fitting = [each for each in planned if each.answer.fits]
    reaching = [each for each in fitting if _speed(each) >= tokens_per_s]
    # Where two cost the same, the faster one comes first.
    reaching.sort(key=lambda each: (each.machine.price, -_speed(each)))
    return Bought(reaching=tuple(reaching), fastest=max(fitting, key=_speed, default=None))


def _speed(planned: AnsweredQuestion) -> float:
    return planned.answer.tokens_per_s or 0.0
