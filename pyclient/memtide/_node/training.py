"""The ranks of one training on a node: they share a job, and what they have alike.

MEMTIDE_TRAINING in the environment of the ranks is a secret of theirs. From it they make the name
of their job, and the secret of the digests by which they compare bytes. `memtide run` does not set
it yet, so that ranks share nothing unless it is set (docs/decisions/0035).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from memtide._capi.content_hash import LEAST_SECRET_BYTES

_VARIABLE = "MEMTIDE_TRAINING"


@dataclass(frozen=True)
class Training:
    """A training of several ranks, as one of them knows it."""

    secret: str
    rank: int
    ranks: int

    @property
    def job_name(self) -> str:
        """The name of the job of all ranks."""
        return f"ranks-{hashlib.sha256(self.secret.encode()).hexdigest()[:16]}"

    @property
    def hash_secret(self) -> bytes:
        """The secret of digests."""
        return hashlib.shake_256(self.secret.encode()).digest(LEAST_SECRET_BYTES)


def of_rank(rank: int, ranks: int) -> Training | None:
    """The training of which this process is a rank; None: it is alone, or has no secret."""
    secret = os.environ.get(_VARIABLE, "")
    if ranks < 2 or not secret:
        return None
    # Ranks that torchelastic starts anew are another training, with another job.
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Training(f"{secret}-{restarts}", rank, ranks)
