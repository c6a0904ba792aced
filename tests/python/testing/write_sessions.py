"""Writes what the daemon says of its sessions, and the bytes that these have in common, to a file:
`write_sessions.py FILE BYTES`. The daemon finds those beside training: this waits for BYTES of
them, 30 seconds at most."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from memtide._daemon import inspection

if __name__ == "__main__":
    until = time.monotonic() + 30
    while True:
        node = inspection.inspect(sessions=True)
        shared_bytes = sum(kind.shared_bytes for kind in node.kinds.values())
        if shared_bytes >= int(sys.argv[2]) or time.monotonic() > until:
            break
        time.sleep(0.1)
    usage = {"sessions": node.sessions, "shared_bytes": shared_bytes}
    Path(sys.argv[1]).write_text(json.dumps(usage), encoding="utf-8")
