"""`memtide plan --ways`: the strategies of using several devices, beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable

from memtide._plan_file.question import Question
from memtide._util.console import make_console

_EXIT_DOES_NOT_FIT = 3


def run_device_strategies(question: Question, *, as_json: bool) -> Callable[[], int]:
    """Prints how each strategy trains what is asked, with the batch that one device of each would
    have if the user names none."""
    from memtide_plan.devices.best import best
    from memtide_plan.fastest import ask

    planned = ask(question)
    plan = best(planned.model, planned.training, planned.machine)
    if as_json:
        print(json.dumps(plan.as_json(), indent=1))
    else:
        training = planned.training
        console = make_console()
        console.print(
            f"{planned.model.name}, {training.batch} sequences of {training.sequence} tokens a "
            "step",
            markup=False,
            highlight=False,
        )
        for line in plan.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return lambda: 0 if plan.choice is not None else _EXIT_DOES_NOT_FIT
