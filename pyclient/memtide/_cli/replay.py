"""`memtide replay`: runs the program memtide-replay, which replays traces."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from memtide._capi import locate


def replay(arguments: Sequence[str]) -> int:
    """Runs memtide-replay with these arguments and returns its exit status."""
    program = locate.find_replay()
    return subprocess.run([str(program), *arguments], check=False).returncode
