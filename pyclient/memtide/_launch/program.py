"""Runs a program as Python does: a script, a module (`python -m`), or a command on PATH."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

from memtide.errors import UsageError


@dataclass(frozen=True)
class Program:
    """The program to run, and its arguments."""

    name: str  # A script's path, a Python command on PATH, or a module's name.
    arguments: list[str]
    is_module: bool = False

    def located(self) -> Program:
        """The program with the path of its script. UsageError: there is no such program, or it is
        memtide; a module's parent package is searched, but none of its code runs yet."""
        if Path(self.name).name == "memtide":
            raise UsageError("'memtide run' is there twice: leave the second one out")
        if self.is_module:
            _put_first(Path.cwd())
            if not is_installed(self.name.partition(".")[0]):
                raise UsageError(f"no module named '{self.name}'")
            return self
        if re.fullmatch(r"python[\d.]*", Path(self.name).name):
            raise UsageError(
                f"leave '{self.name}' out: memtide run train.py, or memtide run -m package.train"
            )
        if Path(self.name).exists():
            if not os.access(_source_of(self.name), os.R_OK):
                raise UsageError(f"can't open script '{self.name}': {_source_of(self.name)}")
            return self
        command = shutil.which(self.name)
        if command is None:
            raise UsageError(f"no script at '{self.name}', and no such command")
        if not os.access(command, os.R_OK) or not _is_in_python(Path(command)):
            raise UsageError(f"'{command}' is no Python program, or is not readable")
        return replace(self, name=command)

    def as_arguments(self) -> list[str]:
        """The program as arguments of `memtide run`."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]


def _put_first(folder: Path) -> None:
    """Puts into sys.path what Python puts first for the program: its folder, unless
    PYTHONSAFEPATH or `python -I` forbids that. `memtide` itself runs with `python -P`, which puts
    none there."""
    if not sys.flags.safe_path:
        sys.path[0] = str(folder)
    elif not sys.flags.isolated and not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(folder))


def is_installed(package: str) -> bool:
    """Whether a package of that name is installed. It is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # The name is not a valid one.
        return False


def _source_of(script: str) -> Path:
    path = Path(script)
    return path / "__main__.py" if path.is_dir() else path


def _is_in_python(command: Path) -> bool:
    # If the interpreter's path is long, installers write a shell script whose second line has it.
    with command.open("rb") as file:
        first_lines = file.read(512).split(b"\n")[:2]
    return first_lines[0].startswith(b"#!") and b"python" in b"".join(first_lines)


def run_program(program: Program) -> None:
    """Runs the program as __main__ in this process. Its exceptions pass through."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    load = _load_module if program.is_module else _load_script
    try:
        code = load(program.name, module)
    except (SyntaxError, ValueError) as error:  # The source cannot be compiled.
        raise error.with_traceback(None) from None
    name = str(module.__file__) if program.is_module else program.name
    sys.argv = [name, *program.arguments]
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _load_script(path: str, module: types.ModuleType) -> types.CodeType:
    file = _source_of(path)
    full_path = os.path.abspath(file)  # noqa: PTH100  Path.absolute keeps "..", Python does not.
    loader = importlib.machinery.SourceFileLoader("__main__", full_path)
    module.__dict__.update(__file__=full_path, __loader__=loader)
    _put_first(file.resolve().parent)
    return compile(file.read_bytes(), full_path, "exec", dont_inherit=True)


def _load_module(name: str, module: types.ModuleType) -> types.CodeType:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise SystemExit(f"memtide: can't find module '{name}': {error}") from None
    if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
        raise SystemExit(f"memtide: no module named '{name}' that can be run")
    code = spec.loader.get_code(spec.name)
    if code is None:
        raise SystemExit(f"memtide: module '{name}' has no Python code")
    module.__dict__.update(
        __file__=spec.origin,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    return code
