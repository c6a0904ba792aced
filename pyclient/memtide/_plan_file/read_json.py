"""Dataclasses from JSON values that may be anything: each field is checked for its type.

InvalidArgument names the field. Numbers are finite and not negative, as no plan has others.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from memtide.errors import InvalidArgument

_T = TypeVar("_T")
# More would not do for a float.
_MOST = 1e300


def load_json(path: Path, what: str) -> Any:
    """The JSON values of a file. `what`: how errors call it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{what} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON: {error}") from None


def dataclass_of(kind: type[_T], document: Any, where: str) -> _T:
    """The `kind` that has these fields. `where`: how errors call the document."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"{where} is no object with the fields of a {kind.__name__}")
    hints = get_type_hints(kind)
    if unknown := next((name for name in document if name not in hints), None):
        raise InvalidArgument(f"{where}: a {kind.__name__} has no '{unknown}'")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]  # Each `kind` is a dataclass.
        if field.name in document:
            values[field.name] = _value(hints[field.name], document[field.name], where, field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidArgument(f"{where}: '{field.name}' is missing")
    return kind(**values)


def _value(hint: Any, value: Any, where: str, name: str) -> Any:
    args = get_args(hint)
    if get_origin(hint) is UnionType:
        if value is None:
            return None
        (hint,) = (each for each in args if each is not NoneType)
        return _value(hint, value, where, name)
    if is_dataclass(hint) and isinstance(value, dict):
        return dataclass_of(hint, value, f"{where}: {name}")  # type: ignore[arg-type]
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(args[0], each, where, name) for each in value)
    if get_origin(hint) is Mapping and isinstance(value, dict):
        return {key: _value(args[1], each, where, name) for key, each in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and hint in (int, float) and 0 <= value <= _MOST:
        if hint is float or isinstance(value, int):
            return value
    elif hint in (str, bool) and isinstance(value, hint):
        return value
    wanted = getattr(hint, "__name__", str(hint))
    raise InvalidArgument(f"{where}: '{name}' is {reprlib.repr(value)}, and has to be {wanted}")
