"""An answer in a file: what `memtide plan --json` prints and `--output` writes, and what
`memtide run --plan` reads.

The keys are those of the dataclasses, and stay: "question" has "model", "training" and "machine",
and "answer" is Answer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memtide._plan import machine_file
from memtide._plan.answer import Answer, Busy, Choice
from memtide._plan.machine import Machine
from memtide._plan.model import Block, Model, Product
from memtide._plan.question import Planned
from memtide._plan.training import States, Training
from memtide.errors import InvalidArgument

# With fewer chunks on a device, the daemon opens no session (_node/least_pools.py).
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
        """What is chosen for each block that the model repeats, in the order of forward passes:
        "keep", "move" or "recompute". All blocks, where the model repeats none."""
        blocks = list(self.model.each_block())
        repeated = [block.count > 1 for block in blocks]
        choices = self.choice.activations
        if len(choices) != len(blocks) or not any(repeated):
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
        activations = self.choice.activations
        for number, block in enumerate(self.model.each_block()):
            chosen = activations[number] if number < len(activations) else "keep"
            if chosen == "keep":
                staying += block.saved_bytes_per_token()
            elif chosen == "recompute":
                staying += block.input_bytes_per_token
        return staying


def as_json(planned: Planned) -> dict[str, Any]:
    """The document of a question and its answer, as JSON values."""
    model = planned.model
    return {
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
            "machine": machine_file.as_json(planned.machine),
        },
        "answer": asdict(planned.answer),
    }


def dumps(planned: Planned) -> str:
    """The text of that document."""
    return json.dumps(as_json(planned), indent=1)


def load(path: Path) -> Plan:
    """The plan of a file. InvalidArgument: it is none, or does not fit."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"--plan {path} cannot be read: {error.strerror}") from None
    except ValueError:
        document = None
    try:
        return _plan_of(document, str(path))
    except (KeyError, TypeError, AttributeError):
        raise InvalidArgument(
            f"--plan {path} is no plan: `memtide plan train.py --output {path}` writes one"
        ) from None


def _plan_of(document: Any, where: str) -> Plan:
    question, answer = document["question"], document["answer"]
    if not answer["fits"]:
        raise InvalidArgument(f"--plan {where} does not fit its machine: {answer['limit']}")
    training = dict(question["training"])
    choice = Choice(**{**answer["choice"], "activations": tuple(answer["choice"]["activations"])})
    model = question["model"]
    return Plan(
        model=Model(
            name=model["name"],
            blocks=tuple(_block_of(block) for block in model["blocks"]),
            causal=model["causal"],
            longest_sequence=model["longest_sequence"],
        ),
        training=Training(**{**training, "states": States(**training["states"])}),
        machine=machine_file.machine_of(question["machine"], f"{where}: machine"),
        answer=Answer(**{**answer, "busy": Busy(**answer["busy"]), "choice": choice}),
        choice=choice,
    )


def _block_of(block: Any) -> Block:
    products = tuple(Product(**product) for product in block["products"])
    return Block(**{**block, "products": products})
