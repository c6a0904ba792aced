"""Compiles torch's backend in tests/fake_device, once for each version of it and of torch."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from harness import PACKAGE_PARENT, REPOSITORY

HERE = REPOSITORY / "tests" / "fake_device"
_SOURCES = ("backend.cc", "caching_allocator.cc", "kernels.cc")
_HEADERS = ("caching_allocator.h", "fake_cuda.h", "kernels.h")
_FAKE_CUDA_HEADER = REPOSITORY / "base" / "cuda" / "fake" / "torch_backend.h"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wall")


def environment() -> dict[str, str]:
    """The variables that a process needs so that its torch has the device. REQUIRES: its
    MEMTIDE_LIBRARY is on the fake CUDA."""
    folder = _built()
    return {
        "FAKE_DEVICE_LIBRARY": str(folder / "fake_device.so"),
        "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE_PARENT, HERE, folder))),
    }


def _built() -> Path:
    """A folder with the library, and with the package that announces it to torch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "memtide" / "fake_device" / _version()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "fake_device.so").exists():
            _announce(folder / "fakegpu-1.dist-info")
            _compile(folder / "fake_device.so")
    return folder


def _version() -> str:
    sha = hashlib.sha256(importlib.metadata.version("torch").encode())
    sha.update(repr(_FLAGS).encode())
    for path in (*(HERE / name for name in (*_SOURCES, *_HEADERS)), _FAKE_CUDA_HEADER):
        sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def _announce(folder: Path) -> None:
    """Writes what an installed package has, by which torch finds backends."""
    folder.mkdir(exist_ok=True)
    metadata = "Metadata-Version: 2.1\nName: fakegpu\nVersion: 1\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    (folder / "entry_points.txt").write_text(
        "[torch.backends]\nfakegpu = fakegpu:start\n", encoding="utf-8"
    )


def _compile(library: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    assert compiler, "no C++ compiler"
    spec = importlib.util.find_spec("torch")
    assert spec and spec.submodule_search_locations
    torch = Path(spec.submodule_search_locations[0])
    unfinished = library.with_suffix(".unfinished")
    subprocess.run(
        [
            compiler,
            *_FLAGS,
            f"-I{REPOSITORY}",
            *("-isystem", str(torch / "include")),
            *("-isystem", str(torch / "include" / "torch" / "csrc" / "api" / "include")),
            *(str(HERE / name) for name in _SOURCES),
            *("-o", str(unfinished)),
            f"-L{torch / 'lib'}",
            *("-ltorch_cpu", "-lc10", "-ldl"),
        ],
        check=True,
    )
    unfinished.rename(library)
