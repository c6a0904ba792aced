"""The question that a row asks: its model, training and machine.

InvalidArgument: a row names what is not known, or has a value that cannot be. The error names the
row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from memtide._plan_file.machine import Machine
from memtide._plan_file.model import Model
from memtide._plan_file.training import States, Training
from memtide.errors import InvalidArgument

from memtide_plan import catalogue
from memtide_plan.models.config import described_by
from memtide_plan.models.config_file import ConfigFile
from memtide_plan.models.described import Options
from memtide_plan.rows import Row

MODELS = Path(__file__).with_name("data") / "models.json"  # A config.json for each name.

_GIB = 2**30
_MODEL_KEYS = frozenset(("name", "kernels", "lora_rank", "lora_targets", "lora_merged"))
_MACHINE_KEYS = frozenset(("name", "pool_gib", "drives"))
_TRAINING_KEYS = frozenset(field.name for field in fields(Training))
_POSITIVE = ("batch", "sequence", "micro_batch")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The arguments of estimate() for a row."""

    model: Model
    training: Training
    machine: Machine
    system: str


def inputs_of(row: Row, *, rates: str = "measured") -> Inputs:
    """The question of a row. `rates`: "sheets" leaves out what the row's source measured of its
    machine's links. REQUIRES: the row has a model."""
    assert row.model is not None
    _check_keys(row, "model", row.model, _MODEL_KEYS)
    return Inputs(
        model=_model(row, row.model),
        training=_training(row),
        machine=_machine(row, rates),
        system=row.system,
    )


def _model(row: Row, document: Mapping[str, Any]) -> Model:
    name = document.get("name")
    if name not in _configs():
        raise _wrong(row, f"there is no model '{name}' in data/models.json")
    targets = tuple(document.get("lora_targets", Options().lora_targets))
    return _described(
        name,
        Options(
            kernels=str(document.get("kernels", "torch")),
            lora_rank=document.get("lora_rank", 0),
            lora_targets=targets,
            lora_merged=document.get("lora_merged", False),
        ),
    )


@functools.cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = json.loads(MODELS.read_text(encoding="utf-8"))
    return found


@functools.cache
def _described(name: str, options: Options) -> Model:
    return described_by(ConfigFile(Path(f"{name}.json"), _configs()[name]), options).model


def _training(row: Row) -> Training:
    document = dict(row.training)
    _check_keys(row, "training", document, _TRAINING_KEYS)
    for key in _POSITIVE:
        value = document.get(key)
        if value is None and key == "micro_batch":
            continue
        if type(value) is not int or value < 1:
            raise _wrong(row, f"'{key}' is {value!r}, and has to be a count of at least 1")
    states = document.pop("states", None)
    if states is not None:
        document["states"] = _states(row, states)
    return Training(**document)


def _states(row: Row, document: Any) -> States:
    _check_keys(row, "states", document, frozenset(field.name for field in fields(States)))
    if any(type(value) not in (int, float) or value < 0 for value in document.values()):
        raise _wrong(row, "'states' are bytes of a parameter, at least 0")
    return States(**document)


def _machine(row: Row, rates: str) -> Machine:
    document = row.machine
    _check_keys(row, "machine", document, _MACHINE_KEYS)
    machine = catalogue.machine(str(document.get("name")), rates=rates)
    pool = document.get("pool_gib")
    if pool is not None:
        if not 0 < pool * _GIB <= machine.device.memory_bytes:
            raise _wrong(row, f"a pool of {pool} GiB is not in {machine.device.name}'s memory")
        machine = replace(machine, device=replace(machine.device, pool_bytes=pool * _GIB))
    drives = document.get("drives")
    if drives is not None:
        machine = replace(machine, drive=catalogue.drives_of(machine.name, count=drives))
    return machine


def _check_keys(row: Row, what: str, document: Any, known: frozenset[str]) -> None:
    if not isinstance(document, Mapping):
        raise _wrong(row, f"'{what}' is no object")
    if unknown := next((key for key in document if key not in known), None):
        raise _wrong(row, f"'{what}' has no '{unknown}'")


def _wrong(row: Row, what: str) -> InvalidArgument:
    return InvalidArgument(f"row '{row.id}': {what}")
