"""The step manifest, which is committed with each step: what a new process needs to resume from it.

It names, for each tensor of each optimizer, the chunks and the offset where it is; a tensor that is
too small for chunks is in the manifest itself. The form is JSON, compressed with zlib. Imports no
torch, as a job is resumed before the script runs.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from memtide.errors import DataLoss

_FORM = 1


@dataclass
class SavedTensor:
    """One tensor: at `offset_bytes` in the manifest's chunks, laid end to end, or in `content`."""

    shape: list[int]
    stride: list[int]
    dtype: str
    offset_bytes: int = -1
    content: str = ""
    on_device: bool = False  # Whether a tensor outside chunks was on a GPU.

    def layout(self) -> str:
        """Human-readable shape and type."""
        return f"{self.shape} {self.dtype}"


@dataclass
class SavedParameter:
    """A parameter and its optimizer state by torch's names: tensors, and plain numbers."""

    parameter: SavedTensor
    states: dict[str, SavedTensor] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class SavedOptimizer:
    """An optimizer's parameters in the order of its groups, and the number of its steps."""

    name: str
    steps: int
    parameters: list[SavedParameter]


@dataclass
class StepManifest:
    """The content of a manifest."""

    chunks: list[int] = field(default_factory=list)  # Chunk ids.
    optimizers: list[SavedOptimizer] = field(default_factory=list)
    # Why this step cannot be resumed from; empty if it can.
    lost: str = ""
    training: str = ""  # training.own_id() of the process that has committed the step.
    group: str = ""  # The same for all nodes of a training, also when it is resumed.

    @property
    def steps(self) -> int:
        """The largest number of steps of any optimizer."""
        return max((optimizer.steps for optimizer in self.optimizers), default=0)

    def to_bytes(self, most_bytes: int) -> bytes:
        """The serialized form. If it is too large, a manifest that says so takes its place."""
        serialized = zlib.compress(json.dumps({"form": _FORM, **asdict(self)}).encode(), 1)
        if len(serialized) <= most_bytes or self.lost:
            return serialized
        return StepManifest(
            lost=f"tensors outside chunks make its step manifest {len(serialized)} bytes large; "
            f"the limit is {most_bytes}",
            training=self.training,
            group=self.group,
        ).to_bytes(most_bytes)


def read_manifest(serialized: bytes) -> StepManifest:
    """Parses a serialized manifest. DataLoss: the bytes are no manifest of this version."""
    try:
        document = json.loads(zlib.decompress(serialized))
        if document["form"] != _FORM:
            raise ValueError(f"form {document['form']}, not {_FORM}")
        return StepManifest(
            _list_of(int, document["chunks"]),
            [_optimizer(optimizer) for optimizer in document["optimizers"]],
            _of(str, document["lost"]),
            _of(str, document.get("training", "")),
            _of(str, document.get("group", "")),
        )
    except (
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise DataLoss(f"the job's step manifest cannot be read: {error}") from error


def _optimizer(document: Any) -> SavedOptimizer:
    return SavedOptimizer(
        _of(str, document["name"]),
        _of(int, document["steps"]),
        [
            SavedParameter(
                _tensor(parameter["parameter"]),
                {name: _tensor(state) for name, state in parameter["states"].items()},
                {name: _of(float, value) for name, value in parameter["values"].items()},
            )
            for parameter in document["parameters"]
        ],
    )


def _tensor(document: Any) -> SavedTensor:
    tensor = SavedTensor(**document)
    _list_of(int, tensor.shape)
    _list_of(int, tensor.stride)
    _of(str, tensor.dtype)
    _of(int, tensor.offset_bytes)
    _of(str, tensor.content)
    _of(bool, tensor.on_device)
    return tensor


def _of(kind: type, value: Any) -> Any:
    """The value, if it is of this type. JSON may write a float as an integer."""
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is int):
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _list_of(kind: type, values: Any) -> Any:
    return [_of(kind, value) for value in _of(list, values)]
