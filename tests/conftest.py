"""Fixtures of all tests in Python. Makes the package and python/testing/ importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "python" / "testing"), str(HERE.parent / "pyclient")]

from harness import Cli  # noqa: E402
from reference_runs import ReferenceRuns  # noqa: E402


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line with a cache directory of its own."""
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def reference_runs(tmp_path_factory: pytest.TempPathFactory) -> ReferenceRuns:
    """Kept for the session, by all of its workers together."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "reference-runs"
    folder.mkdir(exist_ok=True)
    return ReferenceRuns(folder)
