"""Imports finish, with which scripts report results, from the scripts of tests/python."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "scripts"))

from common import finish  # noqa: E402

__all__ = ["finish"]
