"""Fixtures. Makes the package and the helpers beside this file importable."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "pyclient")]

from harness import Cli  # noqa: E402
from plain_runs import PlainRuns  # noqa: E402


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line with a cache directory of its own."""
    return Cli(tmp_path)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Daemon and client of the test are those for a GPU of 256 MiB that is played
    (base/cuda/fake)."""
    daemon, library = (
        os.environ.get(name) for name in ("MEMTIDED_FAKE_CUDA", "MEMTIDE_LIBRARY_FAKE_CUDA")
    )
    if not daemon or not library:
        pytest.skip("built without the CUDA toolkit")
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as directory:
        monkeypatch.setenv("MEMTIDED", daemon)
        monkeypatch.setenv("MEMTIDE_LIBRARY", library)
        monkeypatch.setenv("MEMTIDE_FAKE_CUDA", f"dir={directory},memory=256MiB,delay_us=50")
        yield


@pytest.fixture(scope="session")
def plain_runs(tmp_path_factory: pytest.TempPathFactory) -> PlainRuns:
    """Kept for the session, by all of its workers together."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "plain-runs"
    folder.mkdir(exist_ok=True)
    return PlainRuns(folder)
