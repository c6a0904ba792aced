"""The options of benchmarks on a fake GPU, and how they end where it was not built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class NotBuilt(Exception):
    """The fake GPU needs the CUDA toolkit."""


@dataclass(frozen=True)
class Options:
    """The client's library and the daemon, with a fake GPU in them, and the script."""

    client: Path
    memtided: Path
    script: Path
    most_pairs: int
    most_seconds: float

    def check(self) -> None:
        """NotBuilt: a program is missing."""
        if not self.client.exists() or not self.memtided.exists():
            raise NotBuilt("the fake GPU needs the CUDA toolkit's headers to be built")
