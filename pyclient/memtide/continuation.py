"""A named job that outlives its process: each step is published with a note, and a new process that
has built the same model and optimizers takes parameters and states from the last one.

What is not in optimizers does not come back by itself: buffers of modules, schedules, the place in
the data, random numbers. A script asks `memtide.resumed_step()` and moves these there.
"""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch.optim import Optimizer

from memtide.adopt import Adopter
from memtide.daemon_step import DaemonSteps
from memtide.errors import FailedPrecondition
from memtide.job_note import Kept, KeptOptimizer, Note
from memtide.note_writer import NoteWriter, matches, parameters_of, small, type_of
from memtide.packing import SMALLEST_BYTES


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
        self._attached: tuple[int, int] | None = None  # First place and count.
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
        if note.chunks:
            self._attached = self._client.attach(note.chunks), len(note.chunks)
        for kept, optimizer in zip(note.optimizers, self._alive(), strict=False):
            self._restore(kept, optimizer)
            self._steps[optimizer] = kept.steps

    def _restore(self, kept: KeptOptimizer, optimizer: Optimizer) -> None:
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
        self._adopter.expect_states_of(parameters)
        for parameter, each in zip(parameters, kept.parameters, strict=True):
            with torch.no_grad():
                self._fill(parameter, each.parameter)
                state = optimizer.state[parameter] if each.states or each.values else {}
                state.update(each.values)
                row = 0
                for name, state_kept in each.states.items():
                    state[name] = self._filled(state.get(name), state_kept, row)
                    row += self._adopter.manages(state[name])

    def _filled(self, tensor: torch.Tensor | None, kept: Kept, row: int) -> torch.Tensor:
        """State number `row` with its content, in the tensor that the optimizer has made if it
        fits."""
        if kept.offset_bytes < 0:
            return small(kept)
        if tensor is None or not matches(kept, tensor):
            tensor = self._adopter.new_state(
                torch.empty_strided(kept.shape, kept.stride, dtype=type_of(kept), device="meta"),
                row,
            )
        self._fill(tensor, kept)
        return tensor

    def _fill(self, tensor: torch.Tensor, kept: Kept) -> None:
        if kept.offset_bytes < 0:
            tensor.data.copy_(small(kept))
            return
        assert self._attached is not None
        size_bytes = tensor.numel() * tensor.itemsize
        assert size_bytes >= SMALLEST_BYTES
        base = self._adopter.base + self._attached[0] * self._adopter.chunk_bytes
        source = self._adopter.bytes_at(base + kept.offset_bytes, size_bytes)
        whole = tensor.untyped_storage().nbytes() == size_bytes
        if whole and self._adopter.manages(tensor):
            self._adopter.copy_bytes(source, tensor)
        else:
            tensor.data.copy_(source.view(tensor.dtype).as_strided(kept.shape, kept.stride))

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
        if self._attached is not None:  # This process has a published step of its own now.
            with contextlib.suppress(FailedPrecondition):  # Looked at; at the next step, then.
                self._client.free(*self._attached)
                self._attached = None


def _name_of(optimizer: Optimizer, number: int) -> str:
    """A parameter for people."""
    names = [
        name
        for group in optimizer.param_groups
        for name in group.get("param_names", [""] * len(group["params"]))
    ]
    called = f" ({names[number]})" if names[number] else ""
    return f"parameter {number}{called} of {type(optimizer).__name__}"
