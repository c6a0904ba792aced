"""Entry points of the programs in the wheel; `python -m memtide` is the same as `memtide`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from memtide._capi.locate import find_daemon, find_replay


def memtide() -> int:
    """Runs the command line and returns its exit status."""
    from memtide._cli.main import main

    return main()


def memtided() -> None:
    """Replaces this process with memtided, the node's daemon."""
    _exec(find_daemon())


def memtide_replay() -> None:
    """Replaces this process with memtide-replay."""
    _exec(find_replay())


def _exec(program: Path) -> None:
    os.execv(program, [program.name, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(memtide())
