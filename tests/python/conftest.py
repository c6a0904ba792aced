"""Fixtures. Makes the package and the helpers beside this file importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "pyclient")]

from harness import Cli  # noqa: E402


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line with a cache directory of its own."""
    return Cli(tmp_path)
