"""Machines in files: JSON with the fields of Machine, as `memtide doctor --measure` writes them.

A file may have a "source" and a "measured" beside them, which say where its numbers come from.
InvalidArgument: a file cannot be read, or is of no machine. The error names the field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from memtide._plan.machine import Device, Drive, Machine
from memtide.errors import InvalidArgument

_BESIDE = frozenset(("source", "measured"))
_MAY_BE_ZERO = frozenset(("pool_bytes",))


def default_path() -> Path:
    """The file of the machine that this is, which `memtide doctor --measure` writes."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "memtide" / "machine.json"


def load(path: Path) -> Machine:
    """The machine that a file describes."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from None
    return machine_of(document, str(path))


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
    document = {**as_json(machine), **beside}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def as_json(machine: Machine) -> dict[str, Any]:
    """The fields of a machine as JSON values."""
    document = asdict(machine)
    document["device"]["flop_per_s"] = dict(machine.device.flop_per_s)
    return document


def machine_of(document: Any, where: str) -> Machine:
    """The machine of JSON values. `where`: what errors call them."""
    own = _checked(document, Machine, where)
    drive = own.get("drive")
    return Machine(
        **{
            **own,
            "device": Device(**_checked(own["device"], Device, f"{where}: device")),
            "drive": None if drive is None else Drive(**_checked(drive, Drive, f"{where}: drive")),
        }
    )


def _checked(document: Any, kind: type[Any], where: str) -> dict[str, Any]:
    """The document, if it has the fields of a dataclass with numbers where the dataclass has."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"{where} is no object with the fields of a {kind.__name__}")
    known = {field.name: field for field in fields(kind)}
    own = {name: value for name, value in document.items() if name not in _BESIDE}
    if unknown := next((name for name in own if name not in known), None):
        raise InvalidArgument(f"{where}: a {kind.__name__} has no '{unknown}'")
    for name, field in known.items():
        if name not in own:
            if field.default is MISSING:
                raise InvalidArgument(f"{where}: '{name}' is missing")
        elif not (own[name] == 0 and name in _MAY_BE_ZERO) and not _is_of(
            own[name], str(field.type)
        ):
            raise InvalidArgument(f"{where}: '{name}' is {own[name]!r}, and has to be {field.type}")
    return own


def _is_of(value: Any, annotation: str) -> bool:
    """Whether a value of JSON is of a field's type. Every number but an uncertainty is positive,
    which only division would find out otherwise."""
    if value is None:
        return "None" in annotation
    if annotation.startswith("Mapping"):
        return (
            isinstance(value, dict) and bool(value) and all(_is_positive(v) for v in value.values())
        )
    if annotation == "str":
        return isinstance(value, str)
    if annotation.startswith(("float", "int")):
        return _is_positive(value)
    return isinstance(value, dict)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
