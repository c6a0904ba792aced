"""An answer in a file: what `memtide plan --json` prints and `--output` writes, and what
`memtide run --plan` reads.

The keys are those of the dataclasses: "question" has "model", "training" and "machine", and
"answer" is Answer. "format" is a number that grows when a reader has to know of a change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memtide._plan_file import machine_file
from memtide._plan_file.answer import Answer, Choice
from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.question import AnsweredQuestion
from memtide._plan_file.read_json import dataclass_of, load_json
from memtide._plan_file.training import Training
from memtide.errors import InvalidArgument

_FORMAT = 1
# The keys of a model in a file, beside its fields.
_COUNTED = frozenset(("parameters", "trained_parameters"))
_WORDS = ("keep", "move", "recompute")
# With fewer chunks on a device, the daemon opens no session (_daemon/least_pools.py).
_LEAST_SLOTS = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan that a run can be made by. REQUIRES: it fits."""

    model: Model
    training: Training
    machine: Machine
    answer: Answer
    choice: Choice

    def repeated_activations(self) -> tuple[str, ...]:
        """The choice for each block that the model repeats, in the order of forward passes: "keep",
        "move" or "recompute". All blocks, where the model repeats none."""
        repeated = [block.count > 1 for block in self.model.each_block()]
        choices = self.choice.activations
        if not any(repeated):
            return choices
        return tuple(each for each, is_one in zip(choices, repeated, strict=True) if is_one)

    def device_chunk_bytes(self) -> int:
        """The part of a device's memory that is for chunks: what the activations that stay there
        leave. It is a multiple of the chunk size. 0: there is no device."""
        choice = self.choice
        if not choice.device_pool_bytes:
            return 0
        tokens = choice.micro_batch * self.training.sequence
        left_bytes = choice.device_pool_bytes - int(tokens * self._staying_bytes_per_token())
        slots = max(_LEAST_SLOTS, left_bytes // choice.chunk_bytes)
        return slots * choice.chunk_bytes

    def _staying_bytes_per_token(self) -> float:
        staying = 0.0
        blocks = self.model.each_block()
        for block, chosen in zip(blocks, self.choice.activations, strict=True):
            if chosen == "keep":
                staying += block.saved_bytes_per_token()
            elif chosen == "recompute":
                staying += block.input_bytes_per_token
        return staying


def as_json(planned: AnsweredQuestion) -> dict[str, Any]:
    """The document of a question and its answer, as JSON values."""
    model = planned.model
    return {
        "format": _FORMAT,
        "question": {
            "model": {
                "name": model.name,
                "parameters": model.parameters(),
                "trained_parameters": model.trained_parameters(),
                "causal": model.causal,
                "longest_sequence": model.longest_sequence,
                "blocks": [asdict(block) for block in model.blocks],
            },
            "training": asdict(planned.training),
            "machine": asdict(planned.machine),
        },
        "answer": asdict(planned.answer),
    }


def dumps(planned: AnsweredQuestion) -> str:
    """The text of that document."""
    return json.dumps(as_json(planned), indent=1)


def load(path: Path) -> Plan:
    """The plan of a file. InvalidArgument: it is none, or does not fit."""
    where = f"--plan {path}"
    document = load_json(path, where)
    writes = f"`memtide plan train.py --output {path}` writes one"
    if not isinstance(document, dict) or not {"question", "answer"} <= document.keys():
        raise InvalidArgument(f"{where} is no plan: {writes}")
    if document.get("format") != _FORMAT:
        raise InvalidArgument(
            f"{where} is of another release of memtide, whose plans this one does not read: "
            f"{writes} that it reads"
        )
    return _plan_of(document["question"], document["answer"], where)


def _plan_of(question: Any, answered: Any, where: str) -> Plan:
    answer = dataclass_of(Answer, answered, f"{where}: answer")
    if not answer.fits:
        raise InvalidArgument(f"{where} does not fit its machine: {answer.limit}")
    if not isinstance(question, dict):
        raise InvalidArgument(f"{where}: 'question' has no model, training and machine")
    model = question.get("model")
    if isinstance(model, dict):
        model = {name: value for name, value in model.items() if name not in _COUNTED}
    plan = Plan(
        model=dataclass_of(Model, model, f"{where}: model"),
        training=dataclass_of(Training, question.get("training"), f"{where}: training"),
        machine=machine_file.machine_of(question.get("machine"), f"{where}: machine"),
        answer=answer,
        choice=_checked(answer.choice, where),
    )
    blocks = sum(block.count for block in plan.model.blocks)
    if blocks != len(plan.choice.activations):
        raise InvalidArgument(
            f"{where}: 'activations' are of {len(plan.choice.activations)} blocks, and the model "
            f"has {blocks}"
        )
    return plan


def _checked(choice: Choice | None, where: str) -> Choice:
    """Checks the values that a run divides by, and looks up."""
    if choice is None:
        raise InvalidArgument(f"{where}: 'choice' is missing")
    if not choice.chunk_bytes:
        raise InvalidArgument(f"{where}: 'chunk_bytes' is 0, and has to be more")
    if unknown := next((word for word in choice.activations if word not in _WORDS), None):
        raise InvalidArgument(f"{where}: a block does not '{unknown}', but {', '.join(_WORDS)}")
    return choice
