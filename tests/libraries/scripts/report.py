"""What the scripts report, and how: as those of tests/python do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "scripts"))

from common import finish  # noqa: E402

__all__ = ["finish"]
