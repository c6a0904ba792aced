"""A named job that outlives its process: each step is published with a note, and a new process that
has built the same model and optimizers takes parameters and states from the last one.

What is not in optimizers does not come back by itself: buffers of modules, schedules, the place in
the data, random numbers. A script asks `memtide.resumed_step()` and moves these there.
"""

from __future__ import annotations

import weakref

import torch
from torch.optim import Optimizer

from memtide.adopt import Adopter
from memtide.daemon_step import DaemonSteps
from memtide.errors import FailedPrecondition
from memtide.inherited import Inherited
from memtide.job_note import Kept, KeptOptimizer, Note
from memtide.note_writer import NoteWriter, matches, parameters_of, small, type_of


class Continuation:
    """The steps of one process's optimizers, those of its predecessor first. One thread."""

    def __init__(self, adopter: Adopter, daemon: DaemonSteps, found: Note | None) -> None:
        self._adopter = adopter
        self._client = adopter.client
        self._daemon = daemon
        self._writer = NoteWriter(adopter, self._client.chunk_ids)
        self._found = found
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._inherited: Inherited | None = None  # Until a step is published.
        daemon.always = True
        daemon.note = self._note
        daemon.on_published = self._on_published

    def know(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got another group."""
        if optimizer not in self._steps:
            self._optimizers.append(weakref.ref(optimizer))
            self._steps[optimizer] = 0

    def before_forward(self) -> None:
        """A module is about to be used: takes up the job if all its optimizers are there."""
        if self._found is not None and len(self._alive()) >= len(self._found.optimizers):
            self._take_up()

    def before_step(self) -> None:
        """An optimizer is about to step. FailedPrecondition: the job has more optimizers."""
        if self._found is None:
            return
        if len(self._alive()) < len(self._found.optimizers):
            raise FailedPrecondition(
                f"the job that is resumed has {len(self._found.optimizers)} optimizers, and this "
                f"script has made {len(self._alive())} before its first step"
            )
        self._take_up()

    def _alive(self) -> list[Optimizer]:
        return [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]

    def _take_up(self) -> None:
        note, self._found = self._found, None
        assert note is not None
        going_on = list(zip(note.optimizers, self._alive(), strict=False))
        for kept, optimizer in going_on:
            _check_same(kept, optimizer)
        self._inherited = Inherited(self._adopter, note)
        for kept, optimizer in going_on:
            self._restore(kept, optimizer, self._inherited)
            self._steps[optimizer] = kept.steps

    def _restore(self, kept: KeptOptimizer, optimizer: Optimizer, inherited: Inherited) -> None:
        for parameter, each in zip(parameters_of(optimizer), kept.parameters, strict=True):
            with torch.no_grad():
                if each.parameter.offset_bytes < 0:
                    parameter.data.copy_(small(each.parameter, parameter.device))
                elif not self._adopter.move_to(parameter, inherited.storage(each.parameter)):
                    parameter.data.copy_(self._tensor(each.parameter, inherited))
                state = optimizer.state[parameter] if each.states or each.values else {}
                state.update(each.values)
                for name, state_kept in each.states.items():
                    if state_kept.offset_bytes < 0:
                        state[name] = small(state_kept, parameter.device)
                    else:
                        state[name] = self._tensor(state_kept, inherited)

    def _tensor(self, kept: Kept, inherited: Inherited) -> torch.Tensor:
        empty = torch.empty(0, dtype=type_of(kept), device=self._adopter.device)
        return empty.set_(inherited.storage(kept), 0, kept.shape, kept.stride)

    def _note(self, stepping: Optimizer | None) -> bytes:
        if self._daemon.here:
            return Note(lost=self._daemon.here).to_bytes()
        counted = [
            (optimizer, self._steps[optimizer] + int(optimizer is stepping))
            for optimizer in self._alive()
        ]
        return self._writer.note(counted).to_bytes()

    def _on_published(self, stepping: Optimizer | None) -> None:
        if stepping is not None:
            self._steps[stepping] = self._steps.get(stepping, 0) + 1
        # Until now, what no tensor of this process has taken was the last step's.
        self._inherited = None


def _check_same(kept: KeptOptimizer, optimizer: Optimizer) -> None:
    parameters = parameters_of(optimizer)
    if type(optimizer).__name__ != kept.name:
        raise FailedPrecondition(
            f"the job's states are those of {kept.name}, and the script's optimizer in its "
            f"place is {type(optimizer).__name__}"
        )
    if len(parameters) != len(kept.parameters):
        raise FailedPrecondition(
            f"the job's {kept.name} has {len(kept.parameters)} parameters, and the script's "
            f"{type(optimizer).__name__} has {len(parameters)}"
        )
    for number, (parameter, each) in enumerate(zip(parameters, kept.parameters, strict=True)):
        if not matches(each.parameter, parameter):
            raise FailedPrecondition(
                f"{_name_of(optimizer, number)} is {list(parameter.shape)} "
                f"{parameter.dtype}, and in the job {each.parameter.layout()}"
            )


def _name_of(optimizer: Optimizer, number: int) -> str:
    """A parameter for people."""
    names = [
        name
        for group in optimizer.param_groups
        for name in group.get("param_names", [""] * len(group["params"]))
    ]
    called = f" ({names[number]})" if names[number] else ""
    return f"parameter {number}{called} of {type(optimizer).__name__}"
