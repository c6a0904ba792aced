"""Writes what the daemon says of each kind of chunk to a file: `write_usage.py FILE`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from memtide._daemon import inspection

if __name__ == "__main__":
    kinds = inspection.inspect().kinds
    usage = {kind: asdict(usage) for kind, usage in kinds.items()}
    Path(sys.argv[1]).write_text(json.dumps(usage), encoding="utf-8")
