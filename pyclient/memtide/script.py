"""Running a script as `python SCRIPT ARGS...` does."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from pathlib import Path

from memtide.errors import UsageError


def run_script(path: str, arguments: list[str]) -> None:
    """Runs the script as __main__ in this process.

    SystemExit and KeyboardInterrupt come out; any other exception of the script is shown as Python
    shows it, beginning with the script's own frames, and becomes SystemExit(1).
    """
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
        __annotations__={},
    )
    sys.argv = [path, *arguments]
    sys.path[0] = str(file.resolve().parent)
    sys.modules["__main__"] = module
    try:
        code = compile(source, full_path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except Exception as error:
        script_frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(script_frames), script_frames)
        raise SystemExit(1) from None
