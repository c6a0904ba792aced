"""A question with all that its answer depends on, and the answer."""

from __future__ import annotations

from dataclasses import dataclass

from memtide._plan_file.answer import Answer
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import Training


@dataclass(frozen=True, kw_only=True)
class Question:
    """A user's question. `batch` and `sequence` are None where they are to be searched: then those
    of `training` are not used."""

    model: Model
    machine: Machine
    training: Training
    batch: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """An answer, and the training that it is for."""

    model: Model
    machine: Machine
    training: Training
    answer: Answer
