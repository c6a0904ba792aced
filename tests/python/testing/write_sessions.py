"""Writes what the daemon says of its sessions to a file: `write_sessions.py FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from memtide._node import inspection

if __name__ == "__main__":
    sessions = inspection.inspect(sessions=True).sessions
    Path(sys.argv[1]).write_text(json.dumps(sessions), encoding="utf-8")
