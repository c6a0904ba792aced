"""Command lines of Python: what they run, and whether a forked process can stand for an
interpreter.

The processes of the tests and the fork server (fork_server.py) decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Variables that an interpreter, torch or a library that torch loads reads once: at its start, or at
# its import.
_READ_ONCE = ("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_")
_READ_ONCE += ("LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "TRITON_")
# The server gives what it forks the first; torch reads the second when it compiles, and sets it in
# the process of the tests. The others are for a rank's process group, or its store.
_READ_LATER = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
_READ_LATER += ("TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
_READ_LATER += ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE",)
# A budget counts what the import of torch takes.
_COUNTS_IMPORTS = ("--host-memory", "--device-memory")
# -B changes nothing where PYTHONDONTWRITEBYTECODE is set, as it is in all tests.
_OPTIONS = {"-P", "-B", "-u"}
_KINDS = {"-m": "module", "-c": "code"}


class Program(NamedTuple):
    """The program that an interpreter runs."""

    kind: str  # "module", "code" or "script".
    name: str
    arguments: list[str]  # sys.argv, before it runs.
    safe_path: bool
    is_unbuffered: bool


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be those of the server in a process that it forks."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and not name.startswith(_READ_LATER)
    }


def program_of(arguments: Sequence[str]) -> Program | None:
    """The program that `python ARGUMENTS` runs; None: it is for a new interpreter."""
    if any(word.startswith(_COUNTS_IMPORTS) for word in arguments):
        return None
    words, options = list(arguments), set()
    while words and words[0] in _OPTIONS:
        options.add(words.pop(0))
    first, *rest = words or [""]
    kind, name = _KINDS.get(first, "script"), first
    if kind != "script":
        if not rest:
            return None
        name, *rest = rest
    elif Path(first).suffix != ".py":
        return None
    return Program(kind, name, [first, *rest], "-P" in options, "-u" in options)
