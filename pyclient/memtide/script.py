"""Running a script as `python SCRIPT ARGS...` does."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from pathlib import Path

from memtide.errors import UsageError


def run_script(path: str, arguments: list[str]) -> None:
    """Runs the script as __main__ in this process. Its exceptions, SystemExit too, come out."""
    file = Path(path)
    if file.is_dir():
        file /= "__main__.py"
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UsageError(f"can't open script '{path}': {error.strerror}") from None
    full_path = os.path.abspath(file)  # noqa: PTH100  Path.absolute keeps "..", Python does not.
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=full_path,
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", full_path),
        __cached__=None,
    )
    sys.argv = [path, *arguments]
    sys.path[0] = str(file.resolve().parent)
    sys.modules["__main__"] = module
    code = compile(source, full_path, "exec", dont_inherit=True)
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        # The traceback begins with the script's own frames, as without memtide.
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next
        raise
