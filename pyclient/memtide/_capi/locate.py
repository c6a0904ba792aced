"""Paths of the native library, of the programs and of the daemon's directories."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from memtide.errors import NotInstalled

_PACKAGE_DIR = Path(__file__).resolve().parent.parent
_SYSTEM_SOCKET_DIR = Path("/run/memtide")


def find_library() -> Path:
    """libmemtide.so: $MEMTIDE_LIBRARY, else beside this package, else the system's."""
    # The last one is Debian's for the libraries of one architecture.
    of_system = ("/usr/local/lib", "/usr/lib", f"/usr/lib/{platform.machine()}-linux-gnu")
    folders = [_PACKAGE_DIR, *map(Path, of_system)]
    return _find("MEMTIDE_LIBRARY", [folder / "libmemtide.so" for folder in folders])


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
    value = os.environ.get(variable)
    if value:
        if Path(value).is_file():
            return Path(value).resolve()
        raise NotInstalled(f"{variable} names {value}, which is not a file")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise NotInstalled(
        f"{candidates[0].name} was not found; looked for "
        + ", ".join(str(candidate) for candidate in candidates)
        + f". Install memtide, or set {variable}."
    )


def default_socket_dir() -> Path:
    """The directory of the node daemon's sockets; the native library has the same default."""
    value = os.environ.get("MEMTIDE_SOCKET_DIR")
    if value:
        return Path(value)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or _SYSTEM_SOCKET_DIR.exists() or not runtime:
        return _SYSTEM_SOCKET_DIR
    return Path(runtime) / "memtide"


def default_ssd_dir() -> Path:
    """The default parent of the directories that hold private daemons' SSD pools."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "memtide" / "private"
