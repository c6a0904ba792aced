"""A Hugging Face config.json, read value by value, with errors that name the file and the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memtide.errors import InvalidArgument

_LARGEST = 2**40  # No count in a config.json comes near it.


class ConfigFile:
    """The values of one config.json."""

    def __init__(self, path: Path, document: Any = None) -> None:
        """`document`: what the file has, where it has been read. InvalidArgument: the file cannot
        be read, or is no config.json."""
        self.path = path
        try:
            document = document or json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"'{path}' cannot be read as a config.json: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
            raise InvalidArgument(
                f"'{path}' is no config.json of a Hugging Face model: it has no \"model_type\""
            )
        self._values: Mapping[str, Any] = document
        self.model_type: str = document["model_type"]

    def has(self, name: str) -> bool:
        """Whether the value is there, and is not null."""
        return self._values.get(name) is not None

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these values that is there. InvalidArgument: there is none and no default,
        or it is not an integer above 0."""
        for name in names:
            if self.has(name):
                value = self._values[name]
                if type(value) is not int or not 0 < value < _LARGEST:
                    raise InvalidArgument(f"'{self.path}': \"{name}\" is {value!r}, not a count")
                return value
        if default is None:
            raise InvalidArgument(
                f"'{self.path}' has no \"{names[0]}\", which a model of type {self.model_type} has"
            )
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """A value that is true or false."""
        value = self._values.get(name)
        return default if value is None else bool(value)

    def share(self, *names: str, default: float) -> float:
        """The first of these values that is there: a number from 0 to 1."""
        value = next((self._values[name] for name in names if self.has(name)), default)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidArgument(f"'{self.path}': \"{names[0]}\" is {value!r}, not from 0 to 1")
        return float(value)

    def text(self, *names: str, default: str = "") -> str:
        """The first of these values that is there."""
        return next((str(self._values[name]) for name in names if self.has(name)), default)

    def items(self, name: str) -> list[Any]:
        """A list, or the keys of a mapping; empty if there is none."""
        return list(self._values.get(name) or ())

    def task(self, default: str) -> str:
        """The end of the model's class name, such as "ForCausalLM", in its "architectures"."""
        classes = self.items("architectures")
        if not classes:
            return default
        name = str(classes[0])
        if name.endswith("LMHeadModel"):
            return "ForCausalLM"
        start = name.rfind("For")
        return name[start:] if start >= 0 else name[-len("Model") :]

    def name(self) -> str:
        """The model's name: that of the file, or of its folder if the file is config.json."""
        stem = self.path.stem
        return stem if stem != "config" else self.path.resolve().parent.name
