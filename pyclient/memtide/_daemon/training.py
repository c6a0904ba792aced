"""The ranks of one training on a node: they share a job, and what they have alike.

MEMTIDE_TRAINING in the environment of the ranks is a secret of theirs, which the outermost
`memtide run` draws. From it, and from what their launcher calls them, they make the name of their
job, and the secret of the digests by which they compare bytes (docs/decisions/0035).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memtide._capi.content_hash import LEAST_SECRET_BYTES
from memtide._daemon import inspection

_VARIABLE = "MEMTIDE_TRAINING"

# Variables that tell the trainings of one `memtide run` apart. Ranks that torchelastic starts anew
# are another training, with another job unless that has a name.
_LAUNCHER_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True)
class Training:
    """A training of several ranks, as one of them knows it."""

    secret: str
    rank: int
    ranks: int
    socket_dir: Path  # The directory of the daemon which they have in common.

    @property
    def job_name(self) -> str:
        """The name of the job of all ranks."""
        return f"ranks-{hashlib.sha256(self.secret.encode()).hexdigest()[:16]}"

    @property
    def hash_secret(self) -> bytes:
        """The secret of digests."""
        return hashlib.shake_256(self.secret.encode()).digest(LEAST_SECRET_BYTES)

    def shares_contents(self, job_id: int) -> bool:
        """Whether chunks of this rank of the job have contents that other ranks have, too.
        Unavailable: the daemon does not answer."""
        ranks = inspection.inspect(self.socket_dir, sessions=True).ranks_of(job_id)
        return any(use.shared_bytes for use in ranks if use.rank == self.rank)


def announce() -> None:
    """Processes that are started from now on may be ranks of one training, unless this process has
    such a secret already."""
    os.environ.setdefault(_VARIABLE, secrets.token_hex(24))


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """The processes that are started in the block are ranks of a training of their own."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = secrets.token_hex(24)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def own_id() -> str:
    """Tells the trainings of different runs apart, in what they leave. Trainings that torchelastic
    starts anew in one run have the same."""
    secret = os.environ.get(_VARIABLE, "")
    return hashlib.sha256(f"id\n{secret}".encode()).hexdigest()[:16] if secret else ""


def of_rank(rank: int, ranks: int, socket_dir: Path) -> Training | None:
    """The training of which this process is a rank, with this daemon; None: it is alone, or has no
    secret."""
    secret = os.environ.get(_VARIABLE, "")
    if ranks < 2 or not secret:
        return None
    names = [os.environ.get(name, "") for name in _LAUNCHER_VARIABLES]
    return Training("\n".join([secret, *names]), rank, ranks, socket_dir)
