"""Machines in files: JSON with the fields of Machine, as `memtide doctor --measure` writes them.

A file may have a "source" and a "measured" beside them, which say where its numbers come from.
InvalidArgument: a file cannot be read, or is of no machine. The error names the field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memtide._plan_file.machine import Device, Drive, Machine
from memtide._plan_file.read_json import dataclass_of, load_json
from memtide.errors import InvalidArgument

_BESIDE = frozenset(("source", "measured"))
_MAY_BE_ZERO = frozenset(("pool_bytes",))


def default_path() -> Path:
    """The file of the machine that this is, which `memtide doctor --measure` writes."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "memtide" / "machine.json"


def load(path: Path) -> Machine:
    """The machine that a file describes."""
    return machine_of(load_json(path, str(path)), str(path))


def load_this() -> Machine:
    """The machine that this is, as it was measured."""
    path = default_path()
    if not path.exists():
        raise InvalidArgument(
            f"this machine is not measured: `memtide doctor --measure` writes {path}, in 20 seconds"
        )
    return load(path)


def save(machine: Machine, path: Path, beside: Mapping[str, Any]) -> None:
    """Writes a machine. `beside`: what else the file says, under the keys that `load` passes
    over. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**asdict(machine), **beside}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def machine_of(document: Any, where: str) -> Machine:
    """The machine of JSON values. `where`: what errors call them."""
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name not in _BESIDE}
    machine = dataclass_of(Machine, document, where)
    for part in (machine, machine.device, machine.drive):
        _check_positive(part, where)
    return machine


def _check_positive(part: Machine | Device | Drive | None, where: str) -> None:
    """Only division would find out otherwise."""
    for name, value in vars(part).items() if part is not None else ():
        values = value.values() if isinstance(value, Mapping) else (value,)
        if name not in _MAY_BE_ZERO and (0 in values or not values):
            raise InvalidArgument(f"{where}: '{name}' is 0, and has to be more")
