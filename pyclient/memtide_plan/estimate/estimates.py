"""estimate(): the answer to one question, and estimate_all() to many at once."""

from __future__ import annotations

from collections.abc import Sequence

from memtide._plan_file.answer import Answer
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training
from memtide.errors import InvalidArgument

from memtide_plan.estimate.streamed import answer_to
from memtide_plan.estimate.sweep_interpolation import answers_at, answers_of_many, chosen_of_each
from memtide_plan.estimate.system_strategies import strategy_of
from memtide_plan.estimate.trials import Depth, trials_of

_PLACES = (None, "host", "device")
_ACTIVATIONS = (None, "keep", "move", "recompute")


def estimate(
    model: Model, training: Training, machine: Machine, *, system: str = "memtide"
) -> Answer:
    """Whether a step fits, and what it takes, as `system` works (system_strategies.py).

    Deterministic, thread-safe. It takes a second or less, in a process of its own. InvalidArgument:
    an unknown system or type, or a value that cannot be."""
    strategy = strategy_of(system)
    _check(model, training, machine)
    if not strategy.is_searched:
        return answer_to(model, training, machine, strategy)
    (chosen,) = chosen_of_each([trials_of(model, training, machine, strategy)])
    return answers_at([chosen], Depth.WHOLE)[0]


def estimate_all(
    model: Model, training: Training, machines: Sequence[Machine], *, system: str = "memtide"
) -> list[Answer]:
    """The same for many machines, in their order, with a shorter search for each
    (sweep_interpolation.py): the plan that the search's own estimate ranks first is the only one
    that the engine plays."""
    strategy = strategy_of(system)
    for machine in machines:
        _check(model, training, machine)
    if not strategy.is_searched:
        return [answer_to(model, training, machine, strategy) for machine in machines]
    return answers_of_many([trials_of(model, training, machine, strategy) for machine in machines])


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
