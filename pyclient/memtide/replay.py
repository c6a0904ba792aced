"""`memtide replay`: hands over to the program memtide-replay, which plays traces again."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from memtide import locate


def replay(arguments: Sequence[str]) -> int:
    """Runs it, and returns its exit status."""
    # What it is told decides everything, its --help too.
    program = locate.find_replay()
    return subprocess.run([str(program), *arguments], check=False).returncode
