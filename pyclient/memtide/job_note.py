"""What a new process needs to go on where a killed one was: the note of each published step.

It says where every tensor of every optimizer is: in which chunks of the job and at which offset, or
for those too small for chunks, their bytes. JSON, compressed. Imports no torch: a job is looked for
before the script runs.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field

from memtide._steps import MOST_NOTE_BYTES
from memtide.errors import DataLoss

_FORM = 1


@dataclass
class Kept:
    """One tensor. `offset_bytes`: in the noted chunks put one after the other; or its bytes."""

    shape: list[int]
    stride: list[int]
    dtype: str
    offset_bytes: int = -1
    content: str = ""
    on_device: bool = False  # Of what is not in chunks: on a GPU, not on the host.

    def layout(self) -> str:
        """For people."""
        return f"{self.shape} {self.dtype}"


@dataclass
class KeptParameter:
    """A parameter and its states, by torch's names for them. Plain numbers are kept as such."""

    parameter: Kept
    states: dict[str, Kept] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class KeptOptimizer:
    """An optimizer's parameters in the order of its groups, and the steps it has made."""

    name: str
    steps: int
    parameters: list[KeptParameter]


@dataclass
class Note:
    """A published step."""

    chunks: list[int] = field(default_factory=list)  # Ids.
    optimizers: list[KeptOptimizer] = field(default_factory=list)
    # Why nothing can go on from here; empty: it can.
    lost: str = ""

    @property
    def steps(self) -> int:
        """Steps of the optimizer that made the most."""
        return max((optimizer.steps for optimizer in self.optimizers), default=0)

    def to_bytes(self) -> bytes:
        """As it is published. A note that is too long says so instead."""
        written = zlib.compress(json.dumps({"form": _FORM, **asdict(self)}).encode(), 1)
        if len(written) <= MOST_NOTE_BYTES:
            return written
        return Note(
            lost=f"what is not in chunks needs a note of {len(written)} bytes; at most "
            f"{MOST_NOTE_BYTES} are kept"
        ).to_bytes()


def read_note(written: bytes) -> Note:
    """The note of a job. DataLoss: it is none of ours."""
    try:
        told = json.loads(zlib.decompress(written))
        if told["form"] != _FORM:
            raise ValueError(f"form {told['form']}, not {_FORM}")
        optimizers = [
            KeptOptimizer(
                one["name"],
                one["steps"],
                [
                    KeptParameter(
                        Kept(**each["parameter"]),
                        {name: Kept(**state) for name, state in each["states"].items()},
                        each["values"],
                    )
                    for each in one["parameters"]
                ],
            )
            for one in told["optimizers"]
        ]
        return Note(told["chunks"], optimizers, told["lost"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataLoss(f"the job's note cannot be read: {error}") from error
