"""Writes what the daemon says of its sessions, and the bytes that these have in common, to a file:
`write_sessions.py FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from memtide._node import inspection

if __name__ == "__main__":
    node = inspection.inspect(sessions=True)
    shared_bytes = sum(kind.shared_bytes for kind in node.kinds.values())
    usage = {"sessions": node.sessions, "shared_bytes": shared_bytes}
    Path(sys.argv[1]).write_text(json.dumps(usage), encoding="utf-8")
