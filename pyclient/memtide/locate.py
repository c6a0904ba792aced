"""Where the native parts and the daemon's directories are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from memtide.errors import NotInstalled

_PACKAGE_DIR = Path(__file__).resolve().parent
_SYSTEM_SOCKET_DIR = Path("/run/memtide")
_LIBRARY_DIRS = ("/usr/local/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu")


def find_library() -> Path:
    """libmemtide.so: $MEMTIDE_LIBRARY, else beside this package, else the system's."""
    return _find(
        "MEMTIDE_LIBRARY",
        [
            _PACKAGE_DIR / "libmemtide.so",
            *(Path(directory) / "libmemtide.so" for directory in _LIBRARY_DIRS),
        ],
    )


def find_daemon() -> Path:
    """memtided: $MEMTIDED, else beside this package, else on PATH."""
    return _find_program("MEMTIDED", "memtided")


def find_replay() -> Path:
    """memtide-replay: $MEMTIDE_REPLAY, else beside this package, else on PATH."""
    return _find_program("MEMTIDE_REPLAY", "memtide-replay")


def _find_program(variable: str, name: str) -> Path:
    on_path = shutil.which(name)
    candidates = [_PACKAGE_DIR / name, *([Path(on_path)] if on_path else [])]
    candidates += [Path("/usr/local/bin") / name, Path("/usr/bin") / name]
    return _find(variable, candidates)


def _find(variable: str, candidates: list[Path]) -> Path:
    told = os.environ.get(variable)
    if told:
        if Path(told).is_file():
            return Path(told).resolve()
        raise NotInstalled(f"{variable} names {told}, which is not a file")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise NotInstalled(
        f"{candidates[0].name} was not found; looked for "
        + ", ".join(str(candidate) for candidate in candidates)
        + f". Install memtide, or set {variable}."
    )


def default_socket_dir() -> Path:
    """Where the node's daemon listens unless told otherwise: as the native library has it."""
    told = os.environ.get("MEMTIDE_SOCKET_DIR")
    if told:
        return Path(told)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or _SYSTEM_SOCKET_DIR.exists() or not runtime:
        return _SYSTEM_SOCKET_DIR
    return Path(runtime) / "memtide"


def default_ssd_dir() -> Path:
    """Where a private daemon keeps its SSD pool."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "memtide" / "private"
